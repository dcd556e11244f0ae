"""The data sets a run can name. Each is declared in one file, which registers it; lists show them in this order."""

from asfedbridge.data.sources import digits  # isort: skip
from asfedbridge.data.sources import cifar  # isort: skip
from asfedbridge.data.sources import tiny_imagenet  # isort: skip
from asfedbridge.data.sources import neuromorphic  # isort: skip
from asfedbridge.data.sources import own_files  # isort: skip

__all__ = ["cifar", "digits", "neuromorphic", "own_files", "tiny_imagenet"]
