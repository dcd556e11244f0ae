"""Round trips through one buffer for every codec and partial payloads; invalid buffers."""

import pytest
import torch

from asfedbridge.core.compression import Codec, decode, encode
from asfedbridge.core.errors import GuardError
from asfedbridge.core.flat import from_buffer, to_buffer
from asfedbridge.core.payload import Payload, size_in_bytes

DECLARED = {"b": (2, 3), "a": (4,), "one": (), **{f"class/{i}": (2,) for i in range(8)}}
CODECS: list[Codec] = ["none", "fp16", "int8"]


def made(names: list[str]) -> Payload:
    draws = torch.Generator().manual_seed(0)
    return {name: torch.randn(DECLARED[name], generator=draws) for name in names}


@pytest.mark.parametrize("names", [list(DECLARED), ["one", "b"], ["class/7"], []])
@pytest.mark.parametrize("codec", CODECS)
def test_round_trip(codec: Codec, names: list[str]) -> None:
    encoded = encode(made(names), codec, "x")
    content = to_buffer(encoded, DECLARED)
    assert len(content) == size_in_bytes(encoded) + 2  # eleven presence bits
    back = from_buffer(content, DECLARED, codec, "x")
    assert set(back) == set(encoded)
    for name, tensor in encoded.items():
        assert back[name].dtype == tensor.dtype
        assert torch.equal(back[name], tensor), name
        back[name].zero_()  # does not share memory with the buffer
    assert to_buffer(encoded, DECLARED) == content


def test_a_buffer_by_hand() -> None:
    encoded = {"b": torch.tensor([1.0, -2.0]), "a": torch.tensor([0.5])}
    content = to_buffer(encoded, {"b": (2,), "a": (1,), "c": (9,)})
    assert content == bytes([0b11000000]) + bytes.fromhex("0000003f 0000803f 000000c0")


def test_tensors_of_other_memory_formats() -> None:
    tensor = torch.arange(6.0).reshape(2, 3).T
    back = from_buffer(to_buffer({"t": tensor}, {"t": (3, 2)}), {"t": (3, 2)}, "none", "x")
    assert torch.equal(back["t"], tensor)


def test_empty_payload_is_an_empty_buffer() -> None:
    assert to_buffer({}, {}) == b""
    assert from_buffer(b"", {}, "int8", "x") == {}


def test_undeclared_tensor_is_refused() -> None:
    with pytest.raises(GuardError, match="'secret' is private"):
        to_buffer({"secret": torch.zeros(1)}, DECLARED)


@pytest.mark.parametrize("codec", CODECS)
def test_wrong_lengths_and_flags_are_refused(codec: Codec) -> None:
    content = to_buffer(encode(made(["a", "one"]), codec, "x"), DECLARED)
    stray = content[:1] + bytes([content[1] | 1]) + content[2:]  # the flag of a sixteenth tensor; eleven are declared
    for bad in (b"", content[:1], content[:-1], content + b"\0", b"\xff" + content[1:], stray):
        with pytest.raises(GuardError, match=r"^upload: ") as error:
            from_buffer(bad, DECLARED, codec, "upload")
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("codec", CODECS)
def test_random_bytes_are_refused_or_give_a_valid_payload(codec: Codec) -> None:
    draws = torch.Generator().manual_seed(1)
    content = to_buffer(encode(made(list(DECLARED)), codec, "x"), DECLARED)
    for _ in range(300):
        noise = torch.randint(0, 256, (len(content),), generator=draws, dtype=torch.uint8)
        keep = torch.rand(len(content), generator=draws) < 0.9
        mixed = torch.where(keep, torch.frombuffer(bytearray(content), dtype=torch.uint8), noise)
        try:
            back = decode(from_buffer(mixed.numpy().tobytes(), DECLARED, codec, "x"), DECLARED, codec, "x", True)
        except (GuardError, ArithmeticError):
            continue
        assert all(torch.isfinite(t).all() and tuple(t.shape) == DECLARED[name] for name, t in back.items())
