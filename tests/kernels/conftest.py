"""Reuses the fixtures of the model tests."""

from tests.models.conftest import cifar100, images, info, task, threads  # noqa: F401
