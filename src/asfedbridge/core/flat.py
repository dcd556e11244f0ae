"""A payload as one flat buffer of bytes, for a transport that carries a single array.

Names, shapes and types are never read from the buffer: both sides know what was declared. It holds a bit for every
declared name, in sorted order (is it there?), the tensors that are, in the same order, and then the scales of
``compression``. Little-endian throughout.
"""

import math

import numpy as np
import torch

from asfedbridge.core.compression import DTYPES, SCALES, Codec
from asfedbridge.core.payload import GuardError, Payload, Shapes

WIRE = {torch.float32: "<f4", torch.float16: "<f2", torch.int8: "i1"}


def to_buffer(encoded: Payload, declared: Shapes) -> bytes:
    """``encoded`` must be within what was declared; the guard has the last word on the other side."""
    names = sorted(declared)
    sent = [name for name in names if name in encoded]
    flags = np.packbits([name in encoded for name in names]).tobytes() if names else b""
    tensors = [encoded[name] for name in (*sent, SCALES) if name in encoded]
    if len(tensors) != len(encoded):
        raise GuardError(
            f"'{min(encoded.keys() - {*sent, SCALES})}' is private, it was not declared and must not leave"
        )
    return b"".join([flags, *(t.contiguous().numpy().astype(WIRE[t.dtype], copy=False).tobytes() for t in tensors)])


def from_buffer(content: bytes, declared: Shapes, codec: Codec, what: str) -> Payload:
    """The encoded payload, to be decoded: only its length and its flags are checked here."""
    names = sorted(declared)
    place = (len(names) + 7) // 8
    flags = np.unpackbits(np.frombuffer(content[:place], np.uint8))
    if len(content) < place or flags[len(names) :].any():
        raise GuardError(f"{what}: its first {place} bytes do not say which of {len(names)} tensors are there")
    parts = [(name, DTYPES[codec], declared[name]) for name, flag in zip(names, flags, strict=False) if flag]
    if codec == "int8" and parts:
        parts.append((SCALES, torch.float32, (len(parts),)))
    sizes = [dtype.itemsize * math.prod(shape) for _, dtype, shape in parts]
    if len(content) != place + sum(sizes):
        raise GuardError(f"{what}: {len(content)} bytes, and its {len(parts)} tensors take {place + sum(sizes)}")
    encoded: Payload = {}
    for (name, dtype, shape), size in zip(parts, sizes, strict=True):
        piece = np.frombuffer(content[place : place + size], WIRE[dtype])
        encoded[name] = torch.from_numpy(piece.astype(piece.dtype.newbyteorder("="))).reshape(shape)  # a copy
        place += size
    return encoded
