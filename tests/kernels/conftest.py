"""Kernels are tested on the same small tasks and clients as models."""

from tests.models.conftest import cifar100, images, info, task, threads  # noqa: F401
