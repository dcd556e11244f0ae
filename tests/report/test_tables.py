"""Tables of runs and clients: one row each, every number in its column."""

import json
from pathlib import Path
from typing import Any

import pytest

from asfedbridge.core.errors import BadInput
from asfedbridge.report.tables import client_rows, find_summaries, render_markdown, render_text, run_rows
from asfedbridge.runs.summary import Summary, parse_summary


def content(**changes: Any) -> dict[str, Any]:
    return {
        "method": "as-fedbridge", "data": "digits", "seed": 42, "rounds": 9, "partition": "dirichlet", "alpha": 0.5,
        "accuracy": {"ann": 50.0, "snn": 25.0, "all": 37.5}, "best": {"round": 1, "all": 40.0},
        "bridge": {"all": 12.345}, "fused": {"ann": 14.0, "snn": 13.0, "all": 13.57},
        "point": "trained", "bn_buffers": "local",
        "payload_mb": 3.9321, "wall_seconds": 90.0,
        "clients": [
            {"id": 0, "kind": "ann", "width": 0.25, "T": 1, "accuracy": 50.0, "train": 9, "test": 3, "model": "r18"},
            {"id": 1, "kind": "snn", "width": 1.0, "T": 8, "accuracy": 25.0, "train": 8, "test": 2, "model": "r18"},
        ],
    } | changes  # fmt: skip


def summary(*without: str, **changes: Any) -> Summary:
    return parse_summary({key: value for key, value in content(**changes).items() if key not in without})


def columns(rows: list[list[str]], row: int = 1) -> dict[str, str]:
    return dict(zip(rows[0], rows[row], strict=True))


def test_a_run_that_was_stopped_early_is_marked() -> None:
    assert "rounds" not in run_rows([summary(), summary(seed=1)])[0]
    rows = run_rows([summary(), summary(stopped_early={"rounds": 4, "reason": "no gain"})])
    assert [columns(rows, row)["rounds"] for row in (1, 2)] == ["9", "4 of 9"]


def test_one_row_per_run() -> None:
    assert columns(run_rows([summary()])) == {
        "method": "as-fedbridge", "data": "digits", "split": "Dir(0.5)", "seed": "42", "ANN": "50.00", "SNN": "25.00",
        "all": "37.50", "best all": "40.00", "Bridge": "12.35", "fused ANN": "14.00",
        "fused SNN": "13.00", "fused all": "13.57", "point": "trained", "BN": "local",
        "payload MB": "3.93", "minutes": "1.5",
    }  # fmt: skip


def test_a_path_is_shown_by_its_last_part() -> None:
    rows = run_rows([summary(data="npz:some/way/mine.npz"), summary(data="cifar10")])
    assert [row[1] for row in rows[1:]] == ["npz:mine.npz", "cifar10"]


def test_runs_with_different_groups_share_a_table() -> None:
    other = summary("bridge", accuracy={"ann": 60.0, "all": 60.0}, partition="iid", best=None)
    row = columns(run_rows([summary(), other]), 2)
    assert (row["ANN"], row["SNN"], row["all"]) == ("60.00", "-", "60.00")
    assert (row["split"], row["best all"], row["Bridge"]) == ("iid", "-", "-")


def test_the_nearest_prototype_is_a_column_if_a_run_has_it() -> None:
    assert "nearest" not in run_rows([summary(), summary()])[0]
    other = summary("bridge", method="fedproto", nearest={"ann": 10.0, "all": 23.456})
    rows = run_rows([summary(), other])
    assert [columns(rows, i)["nearest"] for i in (1, 2)] == ["-", "23.46"]
    assert [columns(rows, i)["Bridge"] for i in (1, 2)] == ["12.35", "-"]
    assert [columns(rows, i)["point"] for i in (1, 2)] == ["trained", "trained"]


def test_a_run_without_a_shared_network_has_dashes() -> None:
    other = summary("bridge", "fused", method="fedavg")
    found = columns(run_rows([summary(), other]), 2)
    assert (found["Bridge"], found["fused ANN"], found["fused all"]) == ("-", "-", "-")
    assert not any(name.startswith("fused") for name in run_rows([other])[0])


def test_one_row_per_client() -> None:
    assert client_rows(summary())[1:] == [
        ["0", "ann", "r18@0.25", "9", "3", "50.00"],
        ["1", "snn", "r18@1 T=8", "8", "2", "25.00"],
    ]


def test_low_bit_clients_and_only_the_kinds_that_occur() -> None:
    clients = content()["clients"]
    clients[0] |= {"kind": "qnn", "bits": 4}
    clients[1] |= {"kind": "bnn", "bits": 1, "T": 1}
    run = summary(clients=clients, accuracy={"bnn": 25.0, "qnn": 50.0, "all": 37.5})
    assert [row[1:3] for row in client_rows(run)[1:]] == [["qnn", "r18@0.25 b=4"], ["bnn", "r18@1"]]
    assert run_rows([run])[0][4:7] == ["BNN", "QNN", "all"]
    assert run_rows([run, summary()])[0][4:9] == ["ANN", "BNN", "QNN", "SNN", "all"]


def test_a_client_without_accuracy_has_a_dash() -> None:
    clients = content()["clients"]
    clients[0]["accuracy"] = None
    assert client_rows(summary(clients=clients))[1][-1] == "-"


def test_text_columns_are_aligned_with_their_heads() -> None:
    lines = render_text([["name", "x"], ["a", "1.00"], ["longer", "22.00"]]).splitlines()
    assert lines == ["name        x", "-------------", "a        1.00", "longer  22.00"]


def test_markdown() -> None:
    assert render_markdown([["a", "b", "c"], ["1", "2", "3"]]) == "| a | b | c |\n|---|---:|---:|\n| 1 | 2 | 3 |"


def store(path: Path, content: Any) -> None:
    path.mkdir(parents=True)
    (path / "summary.json").write_text(json.dumps(content))


def test_finished_runs_are_found_in_subfolders(tmp_path: Path) -> None:
    store(tmp_path / "grid" / "b", content(seed=2))
    store(tmp_path / "grid" / "a", content(seed=1))
    (tmp_path / "grid" / "unfinished").mkdir()
    store(tmp_path / "one", content(seed=3))
    assert [s.seed for s in find_summaries([tmp_path / "one", tmp_path / "grid"])] == [3, 1, 2]


def test_nothing_to_report(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="none: no such folder"):
        find_summaries([tmp_path / "none"])
    with pytest.raises(BadInput, match=r"no finished run here \(no summary.json\)"):
        find_summaries([tmp_path])


@pytest.mark.parametrize(
    "written", [{"method": "x"}, {"accuracy": 5}, [1], content(clients=5), content(clients=[{}]), content(seed=[1])]
)
def test_the_error_names_an_invalid_summary(tmp_path: Path, written: Any) -> None:
    store(tmp_path / "foreign", written)
    with pytest.raises(BadInput, match="foreign"):
        run_rows(find_summaries([tmp_path]))


def test_every_block_of_a_wide_table_tells_rows_apart() -> None:
    head = ["method", "seed", *(f"column-{i}" for i in range(6))]
    rows = [head, *(["fml", str(seed), *["50.00"] * 6] for seed in range(2))]
    blocks = render_text(rows, 40).split("\n\n")
    assert len(blocks) > 1
    for block in blocks:
        assert [line.split()[:2] for line in block.splitlines()[-2:]] == [["fml", "0"], ["fml", "1"]]
    assert all(len(line) <= 40 for block in blocks for line in block.splitlines())
