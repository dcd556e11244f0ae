"""The built-in data sets. Each module registers its data sets; lists show them in the order of these imports."""

from asfedbridge.data.sources import digits  # isort: skip
from asfedbridge.data.sources import cifar  # isort: skip
from asfedbridge.data.sources import tiny_imagenet  # isort: skip
from asfedbridge.data.sources import neuromorphic  # isort: skip
from asfedbridge.data.sources import own_files  # isort: skip

__all__ = ["cifar", "digits", "neuromorphic", "own_files", "tiny_imagenet"]
