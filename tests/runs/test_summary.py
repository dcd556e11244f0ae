"""Summaries: typed, checked when read, and written back unchanged."""

import json
from pathlib import Path
from typing import Any

import pytest

from asfedbridge.core.errors import BadInput
from asfedbridge.runs.folder import RunFolder, read_summary
from asfedbridge.runs.recipes import quickstart
from asfedbridge.runs.summary import StoppedEarly, parse_summary

CELLS = sorted((Path(__file__).parents[2] / "docs" / "results" / "cells").glob("*/summary.json"))
CONTENT: dict[str, Any] = {
    "format": 1,
    "method": "fml",
    "data": "digits",
    "seed": 3,
    "rounds": 20,
    "stopped_early": {"rounds": 7, "reason": "enough"},
    "engine": "local",
    "partition": "dirichlet",
    "alpha": 0.5,
    "bn_buffers": "local",
    "wall_seconds": 90.0,
    "point": "trained",
    "accuracy": {"ann": 50.0, "all": 50},
    "points": {"trained": {"ann": 50.0, "all": 50.0}},
    "best": {"round": 4, "ann": 60.0, "all": 60.0},
    "clients": [
        {"id": 0, "kind": "ann", "model": "resnet18", "width": 0.5, "accuracy": 50.0, "train": 9, "test": 3, "mine": 1},
        {"id": 1, "kind": "snn", "model": "vgg9", "width": 1, "T": 8, "accuracy": None, "train": 8, "test": 2},
    ],
    "payload_mb": 3.93,
    "uplink_bytes": 10,
    "a_field_of_a_later_version": [1, {"x": None}],
}


def changed(path: str, value: Any) -> dict[str, Any]:
    """The content with one entry changed, or removed if the value is ``...``."""
    content = json.loads(json.dumps(CONTENT))
    *way, last = [int(step) if step.isdecimal() else step for step in path.split("/")]
    place = content
    for step in way:
        place = place[step]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return content


def test_attributes_have_their_types() -> None:
    found = parse_summary(CONTENT)
    assert (found.method, found.seed, found.rounds, found.played) == ("fml", 3, 20, 7)
    assert found.stopped_early == StoppedEarly(7, "enough")
    assert found.accuracy == {"ann": 50.0, "all": 50.0}
    assert found.best
    assert found.best["all"] == 60.0
    assert (found.added, found.downlink_bytes, found.holdout, found.notes) == ({}, 0, 0.0, ())
    first, second = found.clients
    assert (first.id, first.accuracy, first.T, first.labels) == (0, 50.0, 1, ())
    assert (second.kind, second.accuracy, second.T) == ("snn", None, 8)


def test_entries_without_an_attribute_are_kept(tmp_path: Path) -> None:
    found = parse_summary(CONTENT)
    assert found["a_field_of_a_later_version"] == [1, {"x": None}]
    assert dict(found) == CONTENT
    folder = RunFolder(tmp_path, quickstart(), resume=False)
    folder.write_summary(found)
    assert json.loads((tmp_path / "summary.json").read_text()) == CONTENT
    assert list(json.loads((tmp_path / "summary.json").read_text())) == list(CONTENT)  # in the same order
    assert read_summary(tmp_path) == found


def test_a_file_without_a_format_is_read() -> None:
    assert parse_summary(changed("format", ...)).method == "fml"


@pytest.mark.parametrize("file", CELLS, ids=lambda file: file.parent.name)
def test_published_results_are_read(file: Path) -> None:
    found = read_summary(file.parent)
    assert found
    assert len(found.clients) == len(json.loads(file.read_text())["clients"])


def test_there_are_published_results() -> None:
    assert len(CELLS) > 20


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        ("method", ..., "method is missing (must be text)"),
        ("seed", True, "seed=true (must be a whole number)"),
        ("seed", 1.5, "seed=1.5 (must be a whole number)"),
        ("alpha", "x", 'alpha="x" (must be a number)'),
        ("wall_seconds", 10**400, "wall_seconds=1000"),
        ("accuracy", 5, "accuracy=5 (must be an object of numbers)"),
        ("accuracy/all", None, "(must be an object of numbers)"),
        ("points/trained/ann", "x", "points.trained"),
        ("best", 3, "best=3"),
        ("clients", {}, "clients={} (must be a list)"),
        ("clients/1", 5, "(must be a list of objects)"),
        ("clients/1/train", ..., "clients[1].train is missing"),
        ("clients/0/accuracy", "high", 'clients[0].accuracy="high"'),
        ("clients/0/labels", ["a"], "clients[0].labels"),
        ("clients/0/labels", [3, -1], "clients[0].labels=[3, -1] (must be a list of whole numbers, 0 or more)"),
        ("uplink_bytes", 10**400, "uplink_bytes=1000"),
        ("stopped_early/rounds", "all", 'stopped_early.rounds="all"'),
    ],
)
def test_the_error_names_an_invalid_entry(path: str, value: Any, named: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse_summary(changed(path, value), Path("somewhere/summary.json"))
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    assert message.startswith("somewhere/summary.json: is not the summary of a run: ")
    assert named in message
    assert len(message) < 250


def test_a_newer_format_is_refused() -> None:
    with pytest.raises(BadInput, match="format=2 is not supported; this version of asfedbridge reads format 1"):
        parse_summary(changed("format", 2))
