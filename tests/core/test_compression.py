"""Rounding by hand and its error bound, refused payloads, and error feedback over rounds."""

from typing import Any

import pytest
import torch

from asfedbridge.core import payload
from asfedbridge.core.compression import SCALES, Codec, decode, encode, encoded_bytes, restore_upload, shrink_upload
from asfedbridge.core.errors import Diverged, GuardError
from asfedbridge.core.payload import Payload

CODECS: list[Codec] = ["fp16", "int8"]


def shapes(tensors: Payload) -> dict[str, tuple[int, ...]]:
    return {name: tuple(t.shape) for name, t in tensors.items()}


def through(tensors: Payload, codec: Codec) -> Payload:
    return decode(encode(tensors, codec, "x"), shapes(tensors), codec, "x")


def made(seed: int = 0) -> Payload:
    draws = torch.Generator().manual_seed(seed)
    return {
        "b": torch.randn(3, 4, generator=draws),
        "a": 1e-3 * torch.randn(7, generator=draws),
        "one": torch.tensor(0.3),
        "zero": torch.zeros(2),
    }


def test_int8_by_hand() -> None:
    encoded = encode({"w": torch.tensor([2.54, -1.27, 0.01, 0.009, 0.03, 0.05, 0.0])}, "int8", "x")
    assert encoded["w"].dtype == torch.int8
    # scale 0.02: 0.5, 0.45, 1.5 and 2.5 steps; ties to even
    assert encoded["w"].tolist() == [127, -64, 0, 0, 2, 2, 0]
    assert encoded[SCALES].tolist() == pytest.approx([0.02])
    back = decode(encoded, {"w": (7,)}, "int8", "x")["w"]
    assert back.dtype == torch.float32
    assert back.tolist() == pytest.approx([2.54, -1.28, 0, 0, 0.04, 0.04, 0])


def test_fp16_is_half_precision() -> None:
    encoded = encode({"w": torch.tensor([1.0, 1 / 3, -65504.0, 1e-9])}, "fp16", "x")
    assert encoded["w"].dtype == torch.float16
    assert decode(encoded, {"w": (4,)}, "fp16", "x")["w"].tolist() == [1.0, 0.333251953125, -65504.0, 0.0]


def test_none_changes_nothing() -> None:
    tensors = made()
    assert encode(tensors, "none", "x") is tensors
    assert decode(tensors, shapes(tensors), "none", "x") is tensors
    assert shrink_upload(tensors, made(1), {}, "none", "x") == (tensors, {})
    assert restore_upload(tensors, made(1), shapes(tensors), "none", "x") is tensors


@pytest.mark.parametrize("codec", CODECS)
def test_order_of_names_does_not_matter(codec: Codec) -> None:
    """Scales are matched by name: a transport may deliver tensors in any order."""
    tensors = made()
    encoded = encode(tensors, codec, "x")
    other = decode(dict(reversed(encoded.items())), shapes(tensors), codec, "x")
    for name, tensor in tensors.items():
        bound = tensor.abs().max() / (254 if codec == "int8" else 2048)
        assert (other[name] - tensor).abs().max() <= 1.001 * bound, name
        assert other[name].shape == tensor.shape


@pytest.mark.parametrize("codec", CODECS)
def test_encoding_decoded_values_is_lossless(codec: Codec) -> None:
    once = through(made(), codec)
    twice = through(once, codec)
    assert all(torch.allclose(once[name], twice[name], rtol=1e-6, atol=0) for name in once)


@pytest.mark.parametrize("largest", [1e-44, 190 * 2.0**-149, 1e-37, 1e30])
def test_int8_with_extreme_float32_values(largest: float) -> None:
    """A subnormal scale would overflow the integers, so such a tensor is sent as zeros."""
    tensor = torch.tensor([largest, -largest / 2])
    back = through({"w": tensor}, "int8")["w"]
    assert (back - tensor).abs().max() <= max(largest / 250, 1.5e-36)
    assert (back.abs() <= 1.01 * tensor.abs()).all()
    assert (back.sign() * tensor.sign() >= 0).all()


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_non_finite_values_are_refused(codec: Codec, bad: float) -> None:
    with pytest.raises(Diverged, match=r"^upload of client 3: 'w' holds NaN or infinity$"):
        encode({"v": torch.zeros(1), "w": torch.tensor([1.0, bad])}, codec, "upload of client 3")


def test_fp16_does_not_saturate() -> None:
    with pytest.raises(Diverged, match=r"^upload: 'w' reaches 7e\+04, above the maximum of 65504 .*int8$"):
        encode({"w": torch.tensor([1.0, -7e4])}, "fp16", "upload")
    assert through({"w": torch.tensor([1.0, -7e4])}, "int8")["w"][1] == pytest.approx(-7e4)


HOSTILE: list[tuple[Codec, dict[str, Any], type[Exception], str]] = [
    ("int8", {"w": torch.zeros(2)}, GuardError, "'w' is torch.float32, compress=int8 sends torch.int8"),
    ("fp16", {"w": torch.zeros(2)}, GuardError, "'w' is torch.float32, compress=fp16 sends torch.float16"),
    ("fp16", {"w": torch.tensor([1, float("inf")]).half()}, Diverged, "'w' holds NaN or infinity"),
    ("fp16", {"w": torch.zeros(2).half(), SCALES: torch.ones(1)}, GuardError, "has scales"),
    ("fp16", {"w": torch.zeros(3).half()}, GuardError, r"'w' has shape \(3,\), declared \(2,\)"),
    ("fp16", {"v": torch.zeros(2).half()}, GuardError, "'v' is private"),
    ("fp16", {}, GuardError, "declared tensor 'w' is missing"),
    ("int8", {"w": torch.zeros(2, dtype=torch.int8)}, GuardError, "needs 1 float32 scales"),
    ("int8", {"w": torch.zeros(2, dtype=torch.int8), SCALES: torch.ones(2)}, GuardError, "needs 1 float32"),
    ("int8", {"w": torch.zeros(2, dtype=torch.int8), SCALES: torch.ones(1).double()}, GuardError, "needs 1 float32"),
    ("int8", {"w": torch.zeros(2, dtype=torch.int8), SCALES: torch.full((1,), torch.nan)}, Diverged, "a scale is"),
    ("int8", {"w": torch.zeros(2, dtype=torch.int8), SCALES: -torch.ones(1)}, Diverged, "a scale is negative"),
    ("int8", {"w": torch.full((2,), 127, dtype=torch.int8), SCALES: torch.full((1,), 3e38)}, Diverged, "holds NaN"),
    ("int8", {SCALES: torch.ones(1)}, GuardError, "has scales, but no tensor"),
]


@pytest.mark.parametrize(("codec", "encoded", "error", "text"), HOSTILE)
def test_invalid_encoded_payloads_are_refused(codec: Codec, encoded: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=f"^upload of client 3: .*{text}") as found:
        decode(encoded, {"w": (2,)}, codec, "upload of client 3")
    assert "\n" not in str(found.value)


def test_overflow_when_adding_a_difference_is_refused() -> None:
    encoded = encode({"w": torch.tensor([3e38])}, "int8", "x")
    with pytest.raises(Diverged, match="'w' holds NaN or infinity"):
        restore_upload(encoded, {"w": torch.tensor([3e38])}, {"w": (1,)}, "int8", "x")


def play(codec: Codec, rounds: int, feedback: bool) -> tuple[Payload, Payload]:
    """A client whose tensors change by the same small step each round; returns the server state and the exact one."""
    state, residual = made(), Payload()
    exact, step = payload.clone(state), {name: t * 1e-3 + 1e-6 for name, t in made(1).items()}
    for _ in range(rounds):
        down = through(state, codec)
        up = {name: t + step[name] for name, t in down.items()}
        sent, left = shrink_upload(up, down, residual, codec, "x")
        residual = left if feedback else {}
        state = restore_upload(sent, state, shapes(state), codec, "x")
        exact = {name: t + step[name] for name, t in exact.items()}
    return state, exact


@pytest.mark.parametrize("codec", CODECS)
def test_updates_below_the_rounding_step_accumulate(codec: Codec) -> None:
    """The server's state is not rounded: 200 steps, each far below the rounding of the download, add up."""
    state, exact = play(codec, 200, feedback=True)
    for name, tensor in exact.items():
        assert torch.allclose(state[name], tensor, atol=2e-4 * tensor.abs().max().item(), rtol=0), name


def test_error_feedback_compensates_rounding() -> None:
    """Steps of very different size: without feedback int8 would lose the small ones permanently."""
    state = {"w": torch.zeros(2)}
    step, residual, lost = torch.tensor([1.0, 1e-3]), Payload(), {"w": torch.zeros(2)}
    for _ in range(100):
        sent, residual = shrink_upload({"w": state["w"] + step}, state, residual, "int8", "x")
        state = restore_upload(sent, state, {"w": (2,)}, "int8", "x")
        sent, _ = shrink_upload({"w": lost["w"] + step}, lost, {}, "int8", "x")
        lost = restore_upload(sent, lost, {"w": (2,)}, "int8", "x")
    assert lost["w"].tolist() == pytest.approx([100, 0])
    assert state["w"].tolist() == pytest.approx([100, 0.1], rel=0.05)


def test_residuals_exist_only_for_tensors_of_the_download() -> None:
    up = {"w": torch.tensor([1.0, 0.4 / 127]), "firing": torch.tensor([1.0, 0.4 / 127])}
    down, old = {"w": torch.zeros(2)}, {"away": torch.ones(1)}
    sent, residual = shrink_upload(up, down, old, "int8", "x")
    assert set(residual) == {"w", "away"}
    assert residual["w"].tolist() == pytest.approx([0, 0.4 / 127], abs=1e-7)
    assert torch.equal(residual["away"], old["away"])  # not sent this time: kept
    assert set(sent) == {"w", "firing", SCALES}
    again, _ = shrink_upload(up, down, residual, "int8", "x")
    assert again["w"].tolist() == [127, 1]  # 0.8 of a step by now
    assert again["firing"].tolist() == [127, 0]  # not in the download: no feedback


@pytest.mark.parametrize("codec", ["none", *CODECS])
def test_declared_and_encoded_sizes_agree(codec: Codec) -> None:
    tensors = made()
    assert encoded_bytes(shapes(tensors), codec) == payload.size_in_bytes(encode(tensors, codec, "x"))
    assert encoded_bytes({}, codec) == payload.size_in_bytes(encode({}, codec, "x")) == 0
