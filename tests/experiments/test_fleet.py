"""The fleet's grammar: [count*]model[@width]:kind[:T=steps], separated by commas."""

import pytest

from asfedbridge.core.errors import BadInput
from asfedbridge.experiments.fleet import MOST_CLIENTS, parse_fleet


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
        ("resnet18:snn:T=4:foo", "entry 1", "option 'foo' is not known"),
        ("resnet18:ANN", "entry 1", "unknown kind 'ANN'"),
    ],
)
def test_bad_fleets_are_pointed_at(text: str, where: str, what: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse_fleet(text, 4)
    message = str(caught.value)
    assert message.startswith(f"fleet {where}")
    assert what in message
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize("text", ["*resnet18:ann", "resnet18@:ann", "resnet18:ann:", "resnet18:snn:T=2:T=3"])
def test_a_sign_with_nothing_behind_it_is_no_default(text: str) -> None:
    """A lost number must not become 1 unseen."""
    with pytest.raises(BadInput, match="fleet entry 1"):
        parse_fleet(text, 4)


def test_there_is_a_limit_to_the_whole_fleet() -> None:
    assert len(parse_fleet(f"{MOST_CLIENTS}*resnet18:ann", 4)) == MOST_CLIENTS
    with pytest.raises(BadInput, match="10001 clients are more than 10000"):
        parse_fleet(f"{MOST_CLIENTS}*resnet18:ann,resnet18:snn", 4)
