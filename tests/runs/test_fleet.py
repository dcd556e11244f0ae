"""The fleet's grammar: [count*]model[@width]:kind[:T=steps][:b=bits], separated by commas; and fleets with names."""

import pytest

from asfedbridge.core.errors import BadInput
from asfedbridge.core.task import ClientInfo
from asfedbridge.runs.fleet import FLEETS, FORM, MAX_CLIENTS, name_fleet, parse_fleet


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("resnet18:ann", [("ann", 1.0, 1)]),
        ("resnet18:snn", [("snn", 1.0, 4)]),
        ("2*resnet18@0.25:ann", [("ann", 0.25, 1)] * 2),
        ("1*resnet18:ann,2*resnet18@0.5:snn", [("ann", 1.0, 1), ("snn", 0.5, 4), ("snn", 0.5, 4)]),
        ("resnet18:snn:T=8, resnet18:snn", [("snn", 1.0, 8), ("snn", 1.0, 4)]),
        (" resnet18:ann , resnet18:snn ", [("ann", 1.0, 1), ("snn", 1.0, 4)]),
        ("resnet18@0.01:ann,resnet18@4:ann", [("ann", 0.01, 1), ("ann", 4.0, 1)]),
        ("resnet18:snn:T=64,resnet18:snn:T=1", [("snn", 1.0, 64), ("snn", 1.0, 1)]),
    ],
)
def test_good_fleets(text: str, expected: list[tuple[str, float, int]]) -> None:
    clients = parse_fleet(text, 4)
    assert [(c.kind, c.width, c.T) for c in clients] == expected
    assert [c.id for c in clients] == list(range(len(expected)))
    assert {c.model for c in clients} == {"resnet18"}


@pytest.mark.parametrize(
    ("text", "kinds", "bits"),
    [
        ("resnet18:bnn", ["bnn"], [1]),
        ("resnet18:qnn", ["qnn"], [4]),
        ("2*resnet18@0.5:qnn:b=2,resnet18:qnn:b=8", ["qnn"] * 3, [2, 2, 8]),
        ("resnet18:ann,resnet18:snn:T=8,resnet18:bnn,resnet18:qnn:b=3", ["ann", "snn", "bnn", "qnn"], [32, 32, 1, 3]),
    ],
)
def test_low_bit_clients(text: str, kinds: list[str], bits: list[int]) -> None:
    clients = parse_fleet(text, 4)
    assert ([c.kind for c in clients], [c.bits for c in clients]) == (kinds, bits)
    assert [c.T for c in clients if c.kind != "snn"] == [1] * sum(kind != "snn" for kind in kinds)


def test_bits_are_part_of_shape_and_label() -> None:
    two, four, binary = parse_fleet("resnet18:qnn:b=2,resnet18:qnn:b=4,resnet18:bnn", 4)
    assert two.shape != four.shape
    assert (two.label, four.full_kind) == ("client 0 (resnet18@1:qnn:b=2)", "qnn:b=4")
    assert (binary.label, binary.full_kind) == ("client 2 (resnet18@1:bnn)", "bnn")


def at(width: float, fleet: str = "resnet18@{w}:ann,resnet18@{w}:snn") -> list[ClientInfo]:
    """A recipe's fleet."""
    return parse_fleet(fleet.format(w=width), 4)


@pytest.mark.parametrize("name", FLEETS)
@pytest.mark.parametrize("width", [1.0, 0.25])
def test_named_fleets_are_ten_clients_at_any_width(name: str, width: float) -> None:
    clients = parse_fleet(name_fleet(name, at(width)), 4)
    assert len(clients) == 10
    assert max(c.width for c in clients) == width
    assert clients == parse_fleet(name_fleet(f"{name}@{width}", at(0.5)), 4)


def test_named_fleets_are_the_papers() -> None:
    assert name_fleet("scale", at(0.5)) == ",".join(
        f"resnet18{width}:{kind}" for kind in ("ann", "snn") for width in ("@0.125", "@0.25", "@0.5", "@0.125", "@0.25")
    )
    assert name_fleet("scale", at(1.0)).startswith("resnet18@0.25:ann,resnet18@0.5:ann,resnet18:ann,resnet18@0.25:ann,")
    models = [entry.partition(":")[0] for entry in name_fleet("architecture", at(1.0)).split(",")]
    assert models == ["resnet18", "vgg11", "vgg9", "resnet18", "mobilenet"] * 2
    assert name_fleet("3+7", at(0.125)) == "3*resnet18@0.125:ann,7*resnet18@0.125:snn"
    assert name_fleet("ann+qnn8", at(1.0)) == "5*resnet18:ann,5*resnet18:qnn:b=8"
    assert {f"{n}+{10 - n}" for n in range(1, 10)} | {"ann", "snn", "bnn", "qnn2", "qnn4", "qnn8"} <= set(FLEETS)
    assert name_fleet("resnet18:ann", at(0.5)) == "resnet18:ann"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("1+1", "1*vgg9@0.125:ann,1*resnet18@0.125:snn"),
        ("12+30", "12*vgg9@0.125:ann,30*resnet18@0.125:snn"),
        ("3+0", "3*vgg9@0.125:ann"),
        ("0+2", "2*resnet18@0.125:snn"),
        ("2+1@0.5", "2*vgg9@0.5:ann,1*resnet18@0.5:snn"),
    ],
)
def test_any_pair_of_counts_is_a_fleet(name: str, expected: str) -> None:
    line = name_fleet(name, at(0.125, "vgg9@{w}:ann,resnet18@{w}:snn"))
    assert line == expected
    kinds = [client.kind for client in parse_fleet(line, 4)]
    ann, snn = (int(count) for count in name.partition("@")[0].split("+"))
    assert kinds == ["ann"] * ann + ["snn"] * snn


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("0+0", r"^fleet '0\+0': 0 clients are out of range; use 1 to 10000$"),
        ("9999+2", r"^fleet '9999\+2': 10001 clients are out of range; use 1 to 10000$"),
    ],
)
def test_counts_out_of_range_are_refused(name: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        name_fleet(name, at(1.0))


@pytest.mark.parametrize("text", ["-1+2", "1+", "+1", "1+1+1", "a+1", "1.5+2"])
def test_other_sums_are_refused(text: str) -> None:
    with pytest.raises(BadInput, match=r"write \[count\*\]model"):
        parse_fleet(name_fleet(text, at(1.0)), 4)


def test_named_fleets_take_the_families_of_the_recipe() -> None:
    base = at(0.125, "vgg9@{w}:ann,resnet18-ms@{w}:snn")
    assert name_fleet("3+7", base) == "3*vgg9@0.125:ann,7*resnet18-ms@0.125:snn"
    assert (
        name_fleet("ann+bnn", base) == "5*vgg9@0.125:ann,5*vgg9@0.125:bnn"
    )  # no bnn in the base fleet: its first family
    assert name_fleet("scale@0.25", base).startswith("vgg9@0.0625:ann,vgg9@0.125:ann,vgg9@0.25:ann,")
    assert "mobilenet@0.125:snn" in name_fleet("architecture", base)


@pytest.mark.parametrize("text", ["scale@", "scale@wide", "scale@5", "3+7@0"])
def test_a_named_fleets_width_is_checked(text: str) -> None:
    with pytest.raises(BadInput, match=f"fleet '{text}': width".replace("+", r"\+")):
        name_fleet(text, at(1.0))


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ("", "entry 1 ''", "write [count*]model"),
        ("resnet18", "entry 1 'resnet18'", "write [count*]model"),
        ("resnet18:ann,", "entry 2 ''", "write [count*]model"),
        ("resnet18:ann,,resnet18:snn", "entry 2 ''", "write [count*]model"),
        (
            "resnet18:ann,2*resnet19:snn",
            "entry 2 '2*resnet19:snn'",
            "unknown model 'resnet19'; did you mean 'resnet18'",
        ),
        ("resnet18:ann,resnet18:ann,resnet18:rnn", "entry 3 'resnet18:rnn'", "unknown kind 'rnn'"),
        ("resnet18:", "entry 1", "write [count*]model"),
        (":ann", "entry 1", "write [count*]model"),
        ("0*resnet18:ann", "entry 1", "count 0 is out of range"),
        ("-1*resnet18:ann", "entry 1", "count -1 is out of range"),
        ("1.5*resnet18:ann", "entry 1", "count '1.5' is not a number"),
        ("x*resnet18:ann", "entry 1", "count 'x' is not a number"),
        ("10001*resnet18:ann", "entry 1", "count 10001 is out of range"),
        ("2*2*resnet18:ann", "entry 1", "write [count*]model"),
        ("resnet18@0:ann", "entry 1", "width 0 is out of range"),
        ("resnet18@-1:ann", "entry 1", "width -1 is out of range"),
        ("resnet18@5:ann", "entry 1", "width 5 is out of range"),
        ("resnet18@nan:ann", "entry 1", "width nan is out of range"),
        ("resnet18@wide:ann", "entry 1", "width 'wide' is not a number"),
        ("resnet18@0.5@0.5:ann", "entry 1", "write [count*]model"),
        ("resnet18:ann:T=4", "entry 1", "option 'T=4' is not known for kind ann"),
        ("resnet18:snn:T=0", "entry 1", "T 0 is out of range"),
        ("resnet18:snn:T=65", "entry 1", "T 65 is out of range"),
        ("resnet18:snn:T=x", "entry 1", "T 'x' is not a number"),
        ("resnet18:snn:T", "entry 1", "T '' is not a number"),
        ("resnet18:snn:t=4", "entry 1", "option 't=4' is not known"),
        ("resnet18:ann,resnet18:ann:b=4", "entry 2", "option 'b=4' is not known for kind ann; an snn takes T=steps"),
        ("resnet18:bnn:b=1", "entry 1", "option 'b=1' is not known for kind bnn; an snn takes T=steps, a qnn takes b"),
        ("resnet18:qnn:T=4", "entry 1", "option 'T=4' is not known for kind qnn"),
        ("resnet18:snn:b=4", "entry 1", "option 'b=4' is not known for kind snn"),
        ("resnet18:qnn:b=1", "entry 1", "b 1 is out of range; use 2 to 8"),
        ("resnet18:qnn:b=9", "entry 1", "b 9 is out of range; use 2 to 8"),
        ("resnet18:qnn:b=2.5", "entry 1", "b '2.5' is not a number"),
        ("resnet18:qnn:b=2:b=4", "entry 1", "option 'b=4' is given twice"),
        ("scal", "entry 1 'scal'", f"write {FORM}, e.g. 5*resnet18@0.25:snn, or a named fleet; did you mean 'scale'"),
        ("resnet18:snn:T=4:foo", "entry 1", "option 'foo' is not known"),
        ("resnet18:ANN", "entry 1", "unknown kind 'ANN'"),
    ],
)
def test_the_error_names_the_invalid_entry(text: str, where: str, what: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse_fleet(text, 4)
    message = str(caught.value)
    assert message.startswith(f"fleet {where}")
    assert what in message
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize("text", ["*resnet18:ann", "resnet18@:ann", "resnet18:ann:", "resnet18:snn:T=2:T=3"])
def test_a_missing_number_is_not_replaced_by_a_default(text: str) -> None:
    """A forgotten number must not silently become 1."""
    with pytest.raises(BadInput, match="fleet entry 1"):
        parse_fleet(text, 4)


def test_the_size_of_the_whole_fleet_is_limited() -> None:
    assert len(parse_fleet(f"{MAX_CLIENTS}*resnet18:ann", 4)) == MAX_CLIENTS
    with pytest.raises(BadInput, match="10001 clients are out of range; use 1 to 10000"):
        parse_fleet(f"{MAX_CLIENTS}*resnet18:ann,resnet18:snn", 4)
