"""Serialise a payload to one byte buffer, for transports that carry a single array.

The buffer has no names, shapes or types: both sides know the declared ones. It has one presence bit per declared name
in sorted order, then the present tensors in the same order, then the scales of ``compression``. Little-endian.
"""

import math

import numpy as np
import torch

from asfedbridge.core.compression import DTYPES, SCALES, Codec
from asfedbridge.core.errors import GuardError
from asfedbridge.core.payload import Payload, Shapes

WIRE = {torch.float32: "<f4", torch.float16: "<f2", torch.int8: "i1"}


def to_buffer(encoded: Payload, declared: Shapes) -> bytes:
    """``encoded`` may only have declared names. The receiver checks the content."""
    names = sorted(declared)
    sent = [name for name in names if name in encoded]
    flags = np.packbits([name in encoded for name in names]).tobytes() if names else b""
    tensors = [encoded[name] for name in (*sent, SCALES) if name in encoded]
    if len(tensors) != len(encoded):
        raise GuardError(f"'{min(encoded.keys() - {*sent, SCALES})}' is private: the method did not declare it")
    return b"".join([flags, *(t.contiguous().numpy().astype(WIRE[t.dtype], copy=False).tobytes() for t in tensors)])


def from_buffer(content: bytes, declared: Shapes, codec: Codec, what: str) -> Payload:
    """Parse a buffer into an encoded payload. Checks only length and flags; ``compression.decode`` checks the rest."""
    names = sorted(declared)
    place = (len(names) + 7) // 8
    flags = np.unpackbits(np.frombuffer(content[:place], np.uint8))
    if len(content) < place or flags[len(names) :].any():
        raise GuardError(f"{what}: the first {place} bytes are not valid presence flags for {len(names)} tensors")
    parts = [(name, DTYPES[codec], declared[name]) for name, flag in zip(names, flags, strict=False) if flag]
    if codec == "int8" and parts:
        parts.append((SCALES, torch.float32, (len(parts),)))
    sizes = [dtype.itemsize * math.prod(shape) for _, dtype, shape in parts]
    if len(content) != place + sum(sizes):
        raise GuardError(f"{what}: has {len(content)} bytes, expected {place + sum(sizes)} for {len(parts)} tensors")
    encoded: Payload = {}
    for (name, dtype, shape), size in zip(parts, sizes, strict=True):
        piece = np.frombuffer(content[place : place + size], WIRE[dtype])
        encoded[name] = torch.from_numpy(piece.astype(piece.dtype.newbyteorder("="))).reshape(shape)  # a copy
        place += size
    return encoded
