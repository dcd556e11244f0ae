from pathlib import Path

import pytest

from asfedbridge.core.errors import BadInput
from asfedbridge.report.tables import run_rows
from asfedbridge.runs.recipes import quickstart, smoke
from asfedbridge.runs.run import execute
from asfedbridge.runs.setting import prepare
from asfedbridge.runs.spec import apply_overrides
from asfedbridge.runs.summary import parse_summary

SMALL = {"fleet": "2*resnet18@0.125:ann,2*resnet18@0.125:snn", "train_per_class": 12, "test_per_class": 6}


def test_a_holdout_contains_no_test_image(tmp_path: Path) -> None:
    """Each client is tested on a fifth of what it would have trained on; the split itself is the same."""
    whole = prepare(apply_overrides(quickstart(), SMALL), tmp_path)
    cut = prepare(apply_overrides(quickstart(), SMALL | {"holdout": 0.2}), tmp_path)
    forbidden = {image.tobytes() for shard in whole.shards for image in shard.x_test.numpy()}
    for before, after, client in zip(whole.shards, cut.shards, cut.clients, strict=True):
        had = sorted(image.tobytes() for image in before.x_train.numpy())
        trains, tests = ([image.tobytes() for image in x.numpy()] for x in (after.x_train, after.x_test))
        assert sorted(trains + tests) == had
        assert len(tests) == round(0.2 * len(had)) == client.test_size
        assert not forbidden & set(tests)
    assert cut.partition != whole.partition


def test_a_checkpoint_refuses_the_default_of_a_field_that_spec_toml_lost(tmp_path: Path) -> None:
    spec = smoke("standalone")
    execute(apply_overrides(spec, {"optimiser.clip": 1.0}), tmp_path / "run", tmp_path)
    (tmp_path / "run" / "summary.json").unlink()
    file = tmp_path / "run" / "spec.toml"
    file.write_text("".join(x for x in file.read_text().splitlines(keepends=True) if not x.startswith("clip =")))
    with pytest.raises(BadInput, match=r"this checkpoint belongs to another specification \(\w{12}, not \w{12}\)"):
        execute(spec, tmp_path / "run", tmp_path, resume=True)


def test_tables_show_that_a_run_was_judged_on_a_holdout() -> None:
    summary = {
        "method": "fml",
        "data": "digits",
        "seed": 1,
        "rounds": 2,
        "clients": [],
        "partition": "iid",
        "alpha": 0.1,
        "accuracy": {"all": 1.0},
        "best": None,
        "point": "trained",
        "bn_buffers": "local",
        "payload_mb": 0.0,
        "wall_seconds": 1.0,
    }
    assert run_rows([parse_summary(summary)])[1][2] == "iid"
    assert run_rows([parse_summary(summary | {"holdout": 0.2})])[1][2] == "iid, validation 0.2"
