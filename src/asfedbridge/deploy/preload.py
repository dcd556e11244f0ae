"""Imported by the process that all of Flower's are forked from: what each turn would load and look up for itself.

Everything here runs on one thread, so that none is lost in a fork.
"""

import torch

from asfedbridge.kernels import cut
from asfedbridge.models import compile_kernels

THREADS = torch.get_num_threads()  # what a process that is told no number would have

torch.set_num_threads(1)
compile_kernels()
cut(
    torch.zeros(1, 8, 8, dtype=torch.uint8),
    torch.zeros(1, dtype=torch.int64),
    torch.zeros(2, 1, dtype=torch.int64),
    torch.zeros(1, dtype=torch.bool),
    torch.ones(1),
    torch.ones(1),
    1,
)
