from pathlib import Path

from asfedbridge.report.tables import run_rows
from asfedbridge.runs.recipes import quickstart
from asfedbridge.runs.run import prepare
from asfedbridge.runs.spec import apply_overrides
from asfedbridge.runs.summary import parse_summary

SMALL = {"fleet": "2*resnet18@0.125:ann,2*resnet18@0.125:snn", "train_per_class": 12, "test_per_class": 6}


def test_a_holdout_never_shows_a_test_image(tmp_path: Path) -> None:
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


def test_tables_say_that_a_run_was_judged_on_a_holdout() -> None:
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
