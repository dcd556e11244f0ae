"""Payload compression: float16, or int8 with one scale per tensor.

An encoded payload has the declared names and shapes, as float16 or int8 tensors. With int8 it also has ``SCALES``: one
float32 per tensor, in sorted order of names. Rounding is to the nearest, ties to even, so it is deterministic. int8 is
symmetric: scale = largest magnitude / 127, value = scale * integer.
An upload that continues its download (``Method.continues``) is sent as the difference to it. The rounding error is
added to the client's next upload: error feedback (Seide et al., Interspeech 2014; Karimireddy et al., ICML 2019). Other
payloads (prototypes, single layers) are rounded without feedback.
"""

import math
from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from asfedbridge.core import payload
from asfedbridge.core.errors import Diverged, GuardError
from asfedbridge.core.payload import Payload, Shapes

Codec = Literal["none", "fp16", "int8"]
DTYPES: dict[Codec, torch.dtype] = {"none": torch.float32, "fp16": torch.float16, "int8": torch.int8}
SCALES = "#scales"  # not the name of any module attribute
MAX_INTEGER = 127  # integers are -127 to 127; -128 is not used


def encode(tensors: Payload, codec: Codec, what: str) -> Payload:
    """Compress a payload. Values that the codec cannot represent raise ``Diverged``; ``what`` names the payload."""
    if codec == "none":
        return tensors
    for name, tensor in tensors.items():
        if not torch.isfinite(tensor).all():
            raise Diverged(f"{what}: '{name}' holds NaN or infinity")
    if codec == "fp16":
        small = {name: t.half() for name, t in tensors.items()}
        for name, tensor in small.items():
            if not torch.isfinite(tensor).all():
                largest = tensors[name].abs().max().item()
                raise Diverged(
                    f"{what}: '{name}' reaches {largest:.3g}, above the maximum of 65504 for compress=fp16; "
                    f"lower the learning rate or use compress=int8"
                )
        return small
    scales = {name: _scale(tensors[name]) for name in sorted(tensors)}
    small = {name: _to_integers(t, scales[name]) for name, t in tensors.items()}
    return small | ({SCALES: torch.stack(list(scales.values()))} if small else {})


def check_sendable(state: Payload, codec: Codec, what: str) -> None:
    """Raise Diverged if a server state has values that no download could carry: only fp16 has a smaller range."""
    if codec == "fp16":
        encode({name: t for name, t in state.items() if t.is_floating_point()}, codec, what)


def decode(encoded: Payload, declared: Shapes, codec: Codec, what: str, partial: bool = False) -> Payload:
    """Decompress a received payload to float32. Names, shapes, types and scales are untrusted and checked."""
    if codec == "none":
        payload.check(encoded, declared, what, partial)
        return encoded
    tensors = {name: t for name, t in encoded.items() if name != SCALES}
    if wrong := [name for name, t in tensors.items() if t.dtype != DTYPES[codec]]:
        raise GuardError(f"{what}: '{wrong[0]}' is {tensors[wrong[0]].dtype}, compress={codec} sends {DTYPES[codec]}")
    if codec == "int8" and tensors:
        scales = _checked(encoded.get(SCALES), len(tensors), what)
        values = {name: tensors[name].float() * scale for name, scale in zip(sorted(tensors), scales, strict=True)}
        plain = {name: values[name] for name in tensors}  # in the order received
    elif SCALES in encoded:
        raise GuardError(f"{what}: has scales, but no tensor that uses them")
    else:
        plain = {name: t.float() for name, t in tensors.items()}
    payload.check(plain, declared, what, partial)
    return plain


def shrink_upload(up: Payload, down: Payload, residual: Payload, codec: Codec, what: str) -> tuple[Payload, Payload]:
    """Encode an upload; return it with the new residual.

    ``down`` is the decoded download of this round if the upload continues it, else empty. A tensor that is not sent
    keeps its residual.
    """
    if codec == "none":
        return up, residual
    running = [name for name in up if name in down]
    exact = up | {name: up[name] - down[name] for name in running}
    exact |= {name: exact[name] + residual[name] for name in running if name in residual}
    encoded = encode(exact, codec, what)
    shapes = {name: tuple(t.shape) for name, t in exact.items()}
    decoded = decode(encoded, shapes, codec, what)
    return encoded, residual | {name: exact[name] - decoded[name] for name in running}


def restore_upload(
    encoded: Payload, down: Payload, declared: Shapes, codec: Codec, what: str, partial: bool = False
) -> Payload:
    """Decode an upload. ``down`` is the server's unrounded download if the upload continues it, else empty.

    The difference is added to the unrounded values, so rounding of the download does not change the aggregate.
    """
    decoded = decode(encoded, declared, codec, what, partial)
    if codec == "none":
        return decoded
    whole = {name: down[name] + t if name in down else t for name, t in decoded.items()}
    payload.check(whole, declared, what, partial)
    return whole


def encoded_bytes(declared: Mapping[str, tuple[int, ...]], codec: Codec) -> int:
    """The size of an encoded payload with these shapes, including scales."""
    scales = torch.float32.itemsize * len(declared) if codec == "int8" else 0
    return scales + sum(DTYPES[codec].itemsize * math.prod(shape) for shape in declared.values())


def _scale(tensor: Tensor) -> Tensor:
    """The scale, or 0 if it would be below the smallest normal float32: the tensor is then sent as zeros."""
    if not tensor.numel():
        return torch.zeros(())
    scale = tensor.abs().max() / MAX_INTEGER
    return scale if scale >= torch.finfo(torch.float32).tiny else torch.zeros(())


def _to_integers(tensor: Tensor, scale: Tensor) -> Tensor:
    return torch.round(tensor / scale).to(torch.int8) if scale > 0 else torch.zeros_like(tensor, dtype=torch.int8)


def _checked(scales: Tensor | None, count: int, what: str) -> Tensor:
    if scales is None or scales.dtype != torch.float32 or tuple(scales.shape) != (count,):
        raise GuardError(f"{what}: compress=int8 needs {count} float32 scales for {count} tensors")
    if not (torch.isfinite(scales).all() and (scales >= 0).all()):
        raise Diverged(f"{what}: a scale is negative, NaN or infinite")
    return scales
