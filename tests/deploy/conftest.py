"""Deployments are tested with the clients of the engines' tests."""

from tests.engines.conftest import pair  # noqa: F401
