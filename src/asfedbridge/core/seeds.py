"""Where all randomness comes from: a seed is a function of the run, the client, the round and the stage.

Nothing draws from a global generator, so the order of execution, the number of workers and a resume in the
middle change nothing.
"""

import hashlib
import json

import torch


def seed(run: int, *place: int | str) -> int:
    """A 63-bit seed for one place in the run, e.g. ``seed(42, "client", 3, "round", 7, "noise")``."""
    text = json.dumps([run, *place])  # tells 1 from "1", and where a part ends
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def generator(run: int, *place: int | str) -> torch.Generator:
    return torch.Generator().manual_seed(seed(run, *place))
