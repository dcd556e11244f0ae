import pytest
import torch
from torch import Tensor, nn

from asfedbridge.core import payload
from asfedbridge.core.errors import Diverged, GuardError
from asfedbridge.core.payload import Payload

PARAMETERS = {"0.weight", "0.bias", "1.weight", "1.bias"}
STATISTICS = {"1.running_mean", "1.running_var"}


@pytest.fixture
def module() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3))


@pytest.mark.parametrize(("buffers", "names"), [(False, PARAMETERS), (True, PARAMETERS | STATISTICS)])
def test_select_takes_parameters_and_optionally_buffers(module: nn.Module, buffers: bool, names: set[str]) -> None:
    """BatchNorm's integer counter is never part of a payload."""
    taken = payload.select(module, buffers)
    assert taken.keys() == names
    assert all(torch.equal(t, module.state_dict()[name]) for name, t in taken.items())
    assert payload.shapes(module, buffers) == {name: tuple(t.shape) for name, t in taken.items()}
    assert payload.shapes(module, buffers)["0.weight"] == (3, 2, 3, 3)


def test_select_copies(module: nn.Module) -> None:
    taken = payload.select(module, buffers=True)
    module[0].weight.data.add_(1.0)
    assert torch.equal(taken["0.weight"] + 1.0, module[0].weight)
    taken["0.bias"].fill_(7.0)
    assert not (module[0].bias == 7.0).any()
    assert not any(t.requires_grad for t in taken.values())


def test_memory_format_is_not_preserved(module: nn.Module) -> None:
    taken = payload.select(module.to(memory_format=torch.channels_last))  # type: ignore[call-overload]
    assert taken["0.weight"].is_contiguous()
    assert torch.equal(taken["0.weight"], module[0].weight)


def test_load_copies_into_the_tensors_in_place(module: nn.Module) -> None:
    own = module[0].weight
    new = {"0.weight": torch.randn(3, 2, 3, 3), "1.running_var": torch.tensor([1.0, 2.0, 3.0])}
    payload.load(module, new)
    assert module[0].weight is own
    assert own.requires_grad
    assert torch.equal(own, new["0.weight"])
    assert module[1].running_var.tolist() == [1.0, 2.0, 3.0]
    new["0.weight"].zero_()
    assert own.abs().min() > 0


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"2.weight": torch.zeros(3)}, "'2.weight'.*Sequential"),
        ({"0.bias": torch.zeros(1)}, r"'0.bias'.*\(1,\).*\(3,\)"),
    ],
)
def test_load_refuses_unknown_names_and_shapes(module: nn.Module, bad: Payload, message: str) -> None:
    with pytest.raises(GuardError, match=message):
        payload.load(module, bad)


def test_weighted_mean_by_hand() -> None:
    parts = [
        {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor(8.0)},
        {"a": torch.tensor([5.0, 10.0]), "b": torch.tensor(0.0)},
    ]
    before = [payload.clone(part) for part in parts]
    mean = payload.weighted_mean(parts, [1, 3])
    assert {name: t.tolist() for name, t in mean.items()} == {"a": [4.0, 8.0], "b": 2.0}
    for part, was in zip(parts, before, strict=True):
        assert all(torch.equal(part[name], was[name]) for name in was)


def test_weighted_mean_of_one_is_a_copy() -> None:
    only = {"a": torch.tensor([1.0, 3.0])}
    mean = payload.weighted_mean([only], [5])
    mean["a"].zero_()
    assert only["a"].tolist() == [1.0, 3.0]


def test_weighted_mean_adds_in_the_order_given() -> None:
    """In float32 the sum 1e8 + 1 - 1e8 depends on its order, which must be the caller's."""
    big, one, minus = ({"a": torch.tensor(v)} for v in (1e8, 1.0, -1e8))
    assert payload.weighted_mean([big, minus, one], [1, 1, 2])["a"].item() == 0.5
    assert payload.weighted_mean([big, one, minus], [1, 2, 1])["a"].item() == 0.0


def test_every_payload_needs_its_weight() -> None:
    with pytest.raises(ValueError, match=r"longer|shorter"):
        payload.weighted_mean([{"a": torch.zeros(1)}] * 3, [1, 2])


def test_size_counts_bytes() -> None:
    assert payload.size_in_bytes({"a": torch.zeros(3, 5), "b": torch.zeros(())}) == 4 * 15 + 4
    assert payload.size_in_bytes({"a": torch.zeros(3, dtype=torch.float64)}) == 24
    assert payload.size_in_bytes({}) == 0


DECLARED = {"a": (2, 3), "b": (4,)}


def declared_payload(**changed: Tensor) -> Payload:
    return {"a": torch.zeros(2, 3), "b": torch.zeros(4)} | changed


def test_declared_payload_passes() -> None:
    payload.check(declared_payload(), DECLARED, "upload")
    payload.check({}, {}, "upload")


def test_partial_payload_passes_if_allowed() -> None:
    payload.check({"b": torch.zeros(4)}, DECLARED, "upload", partial=True)
    payload.check({}, DECLARED, "upload", partial=True)
    with pytest.raises(GuardError, match="'secret' is private"):
        payload.check({"secret": torch.zeros(1)}, DECLARED, "upload", partial=True)
    with pytest.raises(GuardError, match="'a' has shape"):
        payload.check({"a": torch.zeros(6)}, DECLARED, "upload", partial=True)


@pytest.mark.parametrize(
    ("bad", "error", "message"),
    [
        (declared_payload(secret=torch.zeros(1)), GuardError, "'secret' is private"),
        (declared_payload(a=torch.zeros(3, 2)), GuardError, r"'a' has shape \(3, 2\), declared \(2, 3\)"),
        (declared_payload(b=torch.zeros(4, dtype=torch.float64)), GuardError, "'b' is torch.float64"),
        (declared_payload(b=torch.zeros(4, dtype=torch.float16)), GuardError, "'b' is torch.float16"),
        (declared_payload(b=torch.zeros(4, requires_grad=True)), GuardError, "'b' is not a detached"),
        (declared_payload(b=torch.zeros(4, device="meta")), GuardError, "'b' is not a detached CPU"),
        ({"a": torch.zeros(2, 3)}, GuardError, "'b' is missing"),
        (declared_payload(a=torch.full((2, 3), torch.nan)), Diverged, "'a' holds NaN"),
        (declared_payload(b=torch.tensor([0.0, 0.0, torch.inf, 0.0])), Diverged, "'b' holds NaN or infinity"),
    ],
)
def test_other_payloads_are_refused(bad: Payload, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^upload of client 3: .*{message}"):
        payload.check(bad, DECLARED, "upload of client 3")
