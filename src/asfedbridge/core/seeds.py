"""The only source of randomness: every seed is a function of the run, the client, the round and the stage.

No code uses a global generator, so results do not depend on the order of execution, the number of workers or a resume.
"""

import hashlib
import json

import torch


def seed(run: int, *place: int | str) -> int:
    """A 63-bit seed for one place in the run, e.g. ``seed(42, "client", 3, "round", 7, "noise")``."""
    text = json.dumps([run, *place])  # distinguishes 1 from "1", and ("ab", "c") from ("a", "bc")
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def generator(run: int, *place: int | str) -> torch.Generator:
    return torch.Generator().manual_seed(seed(run, *place))
