"""One thread for all tests in this process, unless a test asks for more: two beside any other load crawl."""

import torch

torch.set_num_threads(1)
