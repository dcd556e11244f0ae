"""Imported by the process from which Flower's processes are forked, so that turns need not import it themselves.

Everything here runs on one thread: threads do not survive a fork.
"""

import torch

from asfedbridge.kernels import cut
from asfedbridge.models import compile_kernels

THREADS = torch.get_num_threads()  # torch's default number of threads

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
