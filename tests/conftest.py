"""What holds for all tests."""

import signal

import torch

# One thread in this process, unless a test asks for more: two beside any other load crawl.
torch.set_num_threads(1)

# A shell starts background jobs, such as this session may be, deaf to Ctrl-C, and the processes that tests start and
# interrupt would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
