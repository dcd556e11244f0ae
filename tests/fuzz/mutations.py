"""What goes wrong with bytes, plain values, lines of text and tensors: each mutation is a few steps, by its number.

A step is an operation and two numbers that say where and what. (Strategies of a library would take ten times as long to
draw these as most guards take to refuse what they make.)
"""

import copy
import math
import random
import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Step(NamedTuple):
    operation: int
    place: int
    value: int


Steps = list[Step]
MOST = 3  # steps of a mutation

NUMBERS: tuple[Any, ...] = (
    math.nan, math.inf, -math.inf, -0.0, 0, -1, 1, 10**12, -(10**12), 2**31, 2**63 - 1, -(2**63), 1e300, 1e-300, 0.5,
)  # fmt: skip
OTHERS: tuple[Any, ...] = (True, False, "", "x", "../../x", "a\nb", "0", "é" * 3, b"\0", [], [1, 2], [0.5], ["x"])
NOTHING: tuple[Any, ...] = (None, {}, {"x": 1}, [[]], [None])
WORDS = ("nan", "inf", "-1", "1e12", "1000000000000", '""', '"x"', "true", "[]", "{}", "[1, [2]]", "", "null", "-0.0")
KINDS = (torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int64, torch.bool, torch.cfloat)
PACKED = tuple(
    struct.pack(form, number)
    for form, numbers in (
        ("<f", (math.nan, math.inf, -math.inf, -0.0, 3e38, 1e-45)),
        ("<e", (math.nan, math.inf, 65504.0)),
        (">I", (0, 2**31, 2**32 - 1)),
        ("<I", (1, 2**31, 2**32 - 1)),
        ("<q", (-1, 10**12, 2**63 - 1)),
    )
    for number in numbers
)


def draw_steps(number: int) -> Steps:
    """The mutation of this number: always the same."""
    draw = random.Random(number)
    return [Step(*(draw.getrandbits(bits) for bits in (16, 32, 16))) for _ in range(draw.randint(1, MOST))]


def mutate_bytes(content: bytes, steps: Steps) -> bytes:
    for step in steps:
        content = BYTES[step.operation % len(BYTES)](content, step.place % (len(content) + 1), step.value)
    return content


def _flip(content: bytes, at: int, value: int) -> bytes:
    changed = bytearray(content)
    for index in range(at, min(at + 1, len(content))):
        changed[index] ^= 1 << value % 8
    return bytes(changed)


def _overwrite(content: bytes, at: int, value: int) -> bytes:
    number = PACKED[value % len(PACKED)]
    return content[:at] + number + content[at + len(number) :]


def _aligned(content: bytes, at: int, value: int) -> bytes:
    """At a multiple of four from the end: where the numbers of an array are."""
    return _overwrite(content, max(0, len(content) - (len(content) - at) // 4 * 4), value)


def _cut(content: bytes, at: int, value: int) -> bytes:
    return content[:at]


def _extend(content: bytes, at: int, value: int) -> bytes:
    return content + bytes([value % 256]) * (1 + at % 9)


def _insert(content: bytes, at: int, value: int) -> bytes:
    return content[:at] + bytes([value % 256]) + content[at:]


def _remove(content: bytes, at: int, value: int) -> bytes:
    return content[:at] + content[at + 1 + value % 8 :]


def _repeat(content: bytes, at: int, value: int) -> bytes:
    end = at + 1 + value % 64
    return content[:end] + content[at:end] + content[end:]


def _swap(content: bytes, at: int, value: int) -> bytes:
    """Two neighbouring blocks."""
    size = 1 + value % 64
    return content[:at] + content[at + size : at + 2 * size] + content[at : at + size] + content[at + 2 * size :]


BYTES: list[Callable[[bytes, int, int], bytes]] = [
    _flip, _flip, _overwrite, _aligned, _cut, _extend, _insert, _remove, _repeat, _swap,
]  # fmt: skip


def mutate_lines(text: bytes, steps: Steps) -> bytes:
    """Lines lost, doubled and exchanged, and values of `key = value` or `"key": value` replaced."""
    lines = text.splitlines(keepends=True)
    for operation, place, value in steps:
        if not lines:
            break
        at, other = place % len(lines), value % len(lines)
        match operation % 5:
            case 0:
                del lines[at]
            case 1:
                lines.insert(at, lines[other])
            case 2:
                lines[at], lines[other] = lines[other], lines[at]
            case 3:
                mark = b"=" if b"=" in lines[at] else b": "
                head, sep, _ = lines[at].partition(mark)
                lines[at] = head + sep + b" " + WORDS[value % len(WORDS)].encode() + b"\n"
            case 4:
                lines[at] = mutate_bytes(lines[at], [Step(*divmod(value, 16)[::-1], place)])
    return b"".join(lines)


def mutate_plain(tree: Any, steps: Steps, values: tuple[Any, ...] = NUMBERS + OTHERS + NOTHING) -> Any:
    """Nested dictionaries and lists, as JSON has them; bytes in them as bytes."""
    tree = copy.deepcopy(tree)
    for operation, place, value in steps:
        spots = list(_spots(tree))
        if not spots:
            break
        holder, key = spots[place % len(spots)]
        new = copy.deepcopy(values[value % len(values)])
        match operation % 6:
            case 0:
                del holder[key]
            case 1 if isinstance(holder, dict):
                holder[("", "x", "client", "round", "error", f"{key}x", "../x")[value % 7]] = holder.pop(key)
            case 2 if isinstance(holder, dict):
                holder[("more", "event", "x.y", "a b", "identity.x")[value % 5]] = copy.deepcopy(holder[key])
            case 3:
                other, beside = spots[value % len(spots)]
                holder[key] = copy.deepcopy(other[beside])
            case 4 if isinstance(holder[key], bytes | str) and holder[key]:
                content = holder[key]
                step = [Step(value % 16, value * 7919 + place, value >> 4)]
                holder[key] = (
                    mutate_bytes(content, step)
                    if isinstance(content, bytes)
                    else mutate_bytes(content.encode(), step).decode(errors="replace")
                )
            case _:
                holder[key] = new
    return tree


def _spots(tree: Any) -> Iterator[tuple[Any, Any]]:
    pairs = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in pairs:
        yield tree, key
        yield from _spots(value)


def mutate_tensors(tensors: dict[str, Tensor], steps: Steps) -> dict[str, Tensor]:
    found = {name: tensor.clone() for name, tensor in tensors.items()}
    for operation, place, value in steps:
        if not found:
            break
        name = sorted(found)[place % len(found)]
        other = sorted(found)[value % len(found)]
        tensor = found[name].detach()
        match operation % 10:
            case 0 | 1:
                flat = tensor.reshape(-1)
                if len(flat):
                    number = NUMBERS[value % len(NUMBERS)]
                    whole = int(number) % 256 - 128 if math.isfinite(number) else -128
                    chosen = torch.tensor(float(number) if tensor.is_floating_point() else whole)
                    flat[place % len(flat)] = chosen.to(tensor.dtype)
            case 2:
                found[name] = tensor.to(KINDS[value % len(KINDS)])
            case 3:
                turned = tensor.t() if tensor.ndim == 2 else tensor[None, None]
                found[name] = (tensor.reshape(-1), tensor[None], turned, tensor.reshape(-1)[1:])[value % 4]
            case 4:
                found[("", f"{name}x", "backbone.weight", "#scales", "a")[value % 5]] = found.pop(name)
            case 5:
                del found[name]
            case 6:
                found[name], found[other] = found[other], found[name]
            case 7:
                found[f"more{value % 3}"] = tensor.clone()
            case 8:
                if tensor.is_floating_point():
                    found[name] = tensor.requires_grad_()
            case 9:
                found[name] = tensor.reshape(-1).repeat(1 + value % 3)
    return found
