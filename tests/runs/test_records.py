"""Means and sums of records against numbers computed by hand."""

from typing import Any

import pytest
import torch

from asfedbridge.core.task import ClientInfo, Round, Upload
from asfedbridge.methods.as_fedbridge import ASFedBridge
from asfedbridge.methods.fedavg import FedAvg
from asfedbridge.methods.fedproto import FedProto
from asfedbridge.methods.standalone import Standalone
from asfedbridge.runs.records import accuracy_at, group_means, make_records, ordered, parse_record, summarise

FLEET = [
    ClientInfo(0, "ann", "resnet18", 0.5, 1, train_size=100, test_size=10),
    ClientInfo(1, "ann", "resnet18", 0.5, 1, train_size=1, test_size=1),
    ClientInfo(2, "snn", "resnet18", 0.25, 8, train_size=7, test_size=3),
]


def record(index: int, client: int, up: int = 0, down: int = 0, **metrics: float) -> dict[str, Any]:
    info = FLEET[client]
    base = {"round": index, "client": client, "kind": info.kind, "model": info.model, "width": info.width}
    named = {key.replace("__", "."): value for key, value in metrics.items()}
    return base | {"uplink_bytes": up, "downlink_bytes": down, "seconds": 1.0} | named


def test_records_count_bytes_in_both_directions() -> None:
    ups = {0: Upload({"a": torch.zeros(5)}, {"received.accuracy": 50.0, "seconds": 2.0}), 2: Upload()}
    first, second = make_records(Round(4, 9), [FLEET[0], FLEET[2]], {0: 24, 2: 0}, ups)
    assert first == {
        "round": 4, "client": 0, "kind": "ann", "model": "resnet18", "width": 0.5,
        "downlink_bytes": 24, "uplink_bytes": 20, "received.accuracy": 50.0, "seconds": 2.0,
    }  # fmt: skip
    assert (second["client"], second["kind"], second["downlink_bytes"], second["uplink_bytes"]) == (2, "snn", 0, 0)


def test_group_means_by_hand() -> None:
    means = group_means([record(0, 0, loss=1.0), record(0, 1, loss=2.0), record(0, 2, loss=6.0, extra=4)])
    assert means["loss"] == {"ann": 1.5, "snn": 6.0, "all": 3.0}  # all: over clients, not over kinds
    assert means["extra"] == {"snn": 4.0, "all": 4.0}
    assert not {"round", "client", "width", "kind", "model"} & set(means)
    assert group_means([]) == {}


def test_a_kind_without_clients_is_absent() -> None:
    assert accuracy_at([record(0, 0, trained__accuracy=40.0)], "trained") == {"ann": 40.0, "all": 40.0}
    assert accuracy_at([], "trained") == {}


def test_the_latest_accuracy_of_every_client_counts() -> None:
    records = [
        record(0, 0, trained__accuracy=10.0),
        record(0, 1, trained__accuracy=20.0),
        record(0, 2, trained__accuracy=30.0),
        record(1, 0, trained__accuracy=40.0),
        record(2, 0, received__accuracy=99.0),
    ]
    assert accuracy_at(records, "trained") == {"ann": 30.0, "snn": 30.0, "all": 30.0}


def test_order_of_groups() -> None:
    assert list(ordered({"snn": 1.0, "all": 2.0, "ann": 3.0})) == ["ann", "snn", "all"]


def rounds(key: str, *values: tuple[float | None, ...]) -> list[dict[str, Any]]:
    """One tuple of accuracies per round; None stands for an absent client."""
    return [
        record(i, client, up=100 * (client + 1), down=10, **{key: value})
        for i, row in enumerate(values)
        for client, value in enumerate(row)
        if value is not None
    ]


def test_the_summary_by_hand() -> None:
    records = rounds("trained__accuracy", (10.0, 20.0, 60.0), (50.0, 60.0, 40.0), (30.0, 31.0, 32.0))
    records += [record(3, c, down=10, received__accuracy=99.0) for c in range(3)]
    summary = summarise(Standalone(), FLEET, records, {"seed": 3})
    assert summary["seed"] == 3
    assert summary["point"] == "trained"
    assert summary["accuracy"] == {"ann": 30.5, "snn": 32.0, "all": 31.0}
    assert summary["best"] == {"round": 1, "ann": 55.0, "snn": 40.0, "all": 50.0}
    assert summary["uplink_bytes"] == 3 * (100 + 200 + 300)
    assert summary["downlink_bytes"] == 4 * 3 * 10
    assert summary["payload_mb"] == 300 / 2**20
    assert not {"bridge", "nearest"} & summary.keys()
    assert summary["clients"][2] == {
        "id": 2, "kind": "snn", "model": "resnet18", "width": 0.25, "T": 8, "bits": 32, "accuracy": 32.0,
            "train": 7, "test": 3,
    }  # fmt: skip
    assert [c["accuracy"] for c in summary["clients"]] == [30.0, 31.0, 32.0]


def test_a_method_is_judged_at_its_own_point() -> None:
    records = rounds("trained__accuracy", (90.0, 90.0, 90.0))
    records += rounds("received__accuracy", (1.0, 2.0, 3.0))
    records += [record(1, c, received__accuracy=value) for c, value in enumerate((4.0, 5.0, 6.0))]
    summary = summarise(FedAvg(), FLEET, records, {})
    assert (summary["point"], summary["accuracy"]["all"], summary["best"]["round"]) == ("received", 5.0, 1)


def test_the_best_round_is_a_full_one_and_the_first_of_equals() -> None:
    key = "trained__accuracy"
    records = rounds(key, (10.0, 10.0, 10.0), (99.0, None, None), (20.0, 20.0, 20.0), (30.0, 10.0, 20.0))
    assert summarise(Standalone(), FLEET, records, {})["best"]["round"] == 2
    partial = rounds(key, (10.0, 10.0, None), (None, 10.0, 20.0))
    assert summarise(Standalone(), FLEET, partial, {})["best"] is None


def test_a_client_that_was_never_drawn_has_no_accuracy() -> None:
    """With few rounds and a small participation, a run may end before a client is drawn."""
    records = rounds("trained__accuracy", (10.0, None, 30.0))
    records += [record(1, c, received__accuracy=5.0) for c in range(3)]
    summary = summarise(Standalone(), FLEET, records, {})
    assert summary["accuracy"]["all"] == pytest.approx(20.0)
    assert [c["accuracy"] for c in summary["clients"]][::2] == [10.0, 30.0]


def test_the_bridge_has_its_own_entry() -> None:
    records = rounds("trained__accuracy", (1.0, 2.0, 3.0))
    records += [record(1, c, received__bridge_accuracy=value) for c, value in enumerate((10.0, 20.0, 60.0))]
    assert summarise(ASFedBridge(), FLEET, records, {})["bridge"] == {"ann": 15.0, "snn": 60.0, "all": 30.0}


def test_the_nearest_prototype_has_its_own_entry_at_the_methods_point() -> None:
    """The latest accuracy of every client with prototypes."""
    records = rounds("trained__accuracy", (1.0, 2.0, 3.0))
    records += rounds("trained__nearest_accuracy", (90.0, None, 60.0), (10.0, 20.0, None))
    records += [record(2, c, received__nearest_accuracy=99.0) for c in range(3)]
    summary = summarise(FedProto(), FLEET, records, {})
    assert summary["nearest"] == {"ann": 15.0, "snn": 60.0, "all": 30.0}
    assert "bridge" not in summary
    assert summary["accuracy"]["all"] == 2.0


def test_a_record_is_typed_and_a_mapping_of_its_line() -> None:
    (found,) = make_records(Round(4, 9), FLEET[2:], {2: 24}, {2: Upload({}, {"trained.accuracy": 50.0})})
    assert (found.round, found.client, found.kind, found.downlink_bytes) == (4, 2, "snn", 24)
    assert found["trained.accuracy"] == found.metrics["trained.accuracy"] == 50.0
    assert found == dict(found)
    assert found != dict(found) | {"round": 5}
    assert parse_record(dict(found) | {"of a later version": [1]})["of a later version"] == [1]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"client": None}, "client must be a whole number"),
        ({"client": True}, "client must be a whole number"),
        ({"kind": 3}, "kind must be text"),
        ({"uplink_bytes": 1.5}, "uplink_bytes must be a whole number"),
        ({"trained.accuracy": "x"}, "trained.accuracy must be a number"),
    ],
)
def test_the_error_names_an_invalid_entry(change: Any, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        parse_record(record(0, 0, trained__accuracy=1.0) | change)
