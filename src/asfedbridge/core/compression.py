"""Payloads made small for the wire: half floats, or bytes with one scale per tensor.

An encoded payload has the names and shapes that were declared, as float16 or int8 tensors; int8 comes with ``SCALES``,
one float32 per tensor in the order of their names. Rounding is to the nearest, ties to even: no draw, so the same bits
everywhere. int8 is symmetric: scale = largest magnitude / 127, value = scale * integer.
An upload that continues its download (a trained copy of it, ``Method.continues``) travels as the difference to it, and
what rounding took away is added to the client's next one: error feedback (Seide et al., Interspeech 2014; Karimireddy
et al., ICML 2019). Other payloads (prototypes, single layers) are values of their own and are rounded as they are.
"""

import math
from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from asfedbridge.core import payload
from asfedbridge.core.errors import Diverged
from asfedbridge.core.payload import GuardError, Payload, Shapes

Codec = Literal["none", "fp16", "int8"]
DTYPES: dict[Codec, torch.dtype] = {"none": torch.float32, "fp16": torch.float16, "int8": torch.int8}
SCALES = "#scales"  # no tensor of a network is called that
LEVELS = 127  # of a sign: -128 is not used


def encode(tensors: Payload, codec: Codec, what: str) -> Payload:
    """For the wire. What the codec cannot hold is an error, never cut off; ``what`` says whose it is."""
    if codec == "none":
        return tensors
    for name, tensor in tensors.items():
        if not torch.isfinite(tensor).all():
            raise Diverged(f"{what}: '{name}' holds NaN or infinity")
    if codec == "fp16":
        small = {name: t.half() for name, t in tensors.items()}
        for name, tensor in small.items():
            if not torch.isfinite(tensor).all():
                most = tensors[name].abs().max().item()
                raise Diverged(
                    f"{what}: '{name}' reaches {most:.3g}, compress=fp16 ends at 65504; "
                    f"lower the learning rate or use compress=int8"
                )
        return small
    scales = {name: _scale(tensors[name]) for name in sorted(tensors)}
    small = {name: _to_integers(t, scales[name]) for name, t in tensors.items()}
    return small | ({SCALES: torch.stack(list(scales.values()))} if small else {})


def decode(encoded: Payload, declared: Shapes, codec: Codec, what: str, partial: bool = False) -> Payload:
    """What came over the wire, in float32 and past the guard: names, shapes, types and scales are not trusted."""
    if codec == "none":
        payload.check(encoded, declared, what, partial)
        return encoded
    tensors = {name: t for name, t in encoded.items() if name != SCALES}
    if wrong := [name for name, t in tensors.items() if t.dtype != DTYPES[codec]]:
        raise GuardError(f"{what}: '{wrong[0]}' is {tensors[wrong[0]].dtype}, compress={codec} sends {DTYPES[codec]}")
    if codec == "int8" and tensors:
        scales = _checked(encoded.get(SCALES), len(tensors), what)
        values = {name: tensors[name].float() * scale for name, scale in zip(sorted(tensors), scales, strict=True)}
        plain = {name: values[name] for name in tensors}  # in the order they came
    elif SCALES in encoded:
        raise GuardError(f"{what}: scales without tensors that have some")
    else:
        plain = {name: t.float() for name, t in tensors.items()}
    payload.check(plain, declared, what, partial)
    return plain


def shrink_upload(up: Payload, down: Payload, residual: Payload, codec: Codec, what: str) -> tuple[Payload, Payload]:
    """An upload for the wire, and what the client keeps of it for its next one.

    ``down`` is what the client decoded in this round if the upload continues it, else empty. A tensor that is not sent
    keeps its residual.
    """
    if codec == "none":
        return up, residual
    running = [name for name in up if name in down]
    exact = up | {name: up[name] - down[name] for name in running}
    exact |= {name: exact[name] + residual[name] for name in running if name in residual}
    encoded = encode(exact, codec, what)
    shapes = {name: tuple(t.shape) for name, t in exact.items()}
    heard = decode(encoded, shapes, codec, what)
    return encoded, residual | {name: exact[name] - heard[name] for name in running}


def restore_upload(
    encoded: Payload, down: Payload, declared: Shapes, codec: Codec, what: str, partial: bool = False
) -> Payload:
    """The upload that the server works with. ``down`` is its own state, unrounded, if the upload continues it.

    The difference is added to what the server has, not to what the client heard: a rounded download moves nothing.
    """
    heard = decode(encoded, declared, codec, what, partial)
    if codec == "none":
        return heard
    whole = {name: down[name] + t if name in down else t for name, t in heard.items()}
    payload.check(whole, declared, what, partial)
    return whole


def encoded_bytes(declared: Mapping[str, tuple[int, ...]], codec: Codec) -> int:
    """The size of an encoded payload of these shapes, scales included."""
    scales = torch.float32.itemsize * len(declared) if codec == "int8" else 0
    return scales + sum(DTYPES[codec].itemsize * math.prod(shape) for shape in declared.values())


def _scale(tensor: Tensor) -> Tensor:
    """A tensor that is zero, or so small that the scale would lose its precision, is sent as zeros with scale 0."""
    if not tensor.numel():
        return torch.zeros(())
    scale = tensor.abs().max() / LEVELS
    return scale if scale >= torch.finfo(torch.float32).tiny else torch.zeros(())


def _to_integers(tensor: Tensor, scale: Tensor) -> Tensor:
    return torch.round(tensor / scale).to(torch.int8) if scale > 0 else torch.zeros_like(tensor, dtype=torch.int8)


def _checked(scales: Tensor | None, count: int, what: str) -> Tensor:
    if scales is None or scales.dtype != torch.float32 or tuple(scales.shape) != (count,):
        raise GuardError(f"{what}: {count} tensors of compress=int8 need as many float32 scales")
    if not (torch.isfinite(scales).all() and (scales >= 0).all()):
        raise Diverged(f"{what}: a scale is negative, NaN or infinity")
    return scales
