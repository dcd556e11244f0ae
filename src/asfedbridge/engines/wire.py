"""Messages between processes: a header of plain values and named tensors. JSON and safetensors, no pickle."""

import json
from collections.abc import Mapping
from typing import Any

import safetensors.torch

from asfedbridge.core import payload
from asfedbridge.core.payload import Payload

PREFIX = 8  # bytes of the header's length


def pack(header: Mapping[str, Any], tensors: Payload | None = None) -> bytes:
    tensors = tensors or {}
    text = json.dumps([header, list(tensors)]).encode()  # safetensors does not preserve order
    # Safetensors refuses tensors that share memory or are not contiguous.
    return b"".join([len(text).to_bytes(PREFIX), text, safetensors.torch.save(payload.clone(tensors))])


def unpack(content: bytes) -> tuple[dict[str, Any], Payload]:
    end = PREFIX + int.from_bytes(content[:PREFIX])
    header, names = json.loads(content[PREFIX:end])
    tensors = safetensors.torch.load(content[end:])
    return header, {name: tensors[name] for name in names}
