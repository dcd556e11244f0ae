"""Six real nodes, two of them hostile: the four honest ones learn as if they were alone.

Quarantine leaves a client that is refused each time three turns in ten rounds (0, 2 and 5) and the closing visit. Two
clients thus have six turns in which an upload counts, and a method needs three runs for all attacks.

One SuperLink with its nodes serves all runs. Runs without hostile clients use the local engine, which gives the bits of
Flower (`test_flower.py`), once for each method, beside the others, as nodes mostly wait. For the cases of one method:
``--all --exhaustive -s -k fedproto``.
"""

import json
import re
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from asfedbridge.core.errors import TooFewClients
from asfedbridge.core.method import METHODS
from asfedbridge.runs.record_files import read_events, read_rounds
from asfedbridge.runs.run import execute
from asfedbridge.runs.setting import Setting
from asfedbridge.runs.spec import ON_NODES, Spec

pytest.importorskip("flwr")
from tests.conformance.hostile_app import ENDS, MISCHIEF
from tests.conformance.test_flower import make_spec as with_sizes

from asfedbridge.deploy.app_folder import write_app
from asfedbridge.deploy.apps import read_data
from asfedbridge.deploy.local_cluster import Loopback
from asfedbridge.deploy.local_run import PRELOAD, follow

pytestmark = pytest.mark.timeout(3600)
HONEST, ROUNDS, SEEDS = 4, 10, (42, 43, 44)
ALWAYS = "fedavg"  # its first part; the others with --exhaustive
HOSTILE = (4, 5)
CLAIMS = {5: 10**8}  # a client that always exaggerates its number of examples
LAST = {*ENDS, "malformed parts"}  # the node takes no turn for a minute, and after malformed parts none at all
TURNS, PARTS = 3, 3  # turns that quarantine leaves to a hostile client; runs for each method
TIMEOUTS = (15.0, 120.0)  # the second one if an honest client was too slow for the first
SILENT = re.compile(r"client (\d+) (timeout|lost|absent):")
APP = Path(__file__).with_name("hostile_app.py")
LEAST_NOISE = 5.0  # points: two standard errors of an accuracy on four test sets of 100 images
CHANCE = 10.0  # percent: there are ten classes
NAMES = sorted(METHODS)


def make_plans(name: str, part: int) -> dict[int, list[str]]:
    """The attacks by client: all attacks in the parts of a method, and in the first parts of all methods."""
    begin = TURNS * len(HOSTILE) * part + NAMES.index(name)
    plans = {}
    for n, client in enumerate(HOSTILE):
        order = [MISCHIEF[(begin + TURNS * n + k) % len(MISCHIEF)] for k in range(len(MISCHIEF))]
        first = sorted(order[:TURNS], key=lambda what: what in LAST)
        plans[client] = [*first, *(what for what in order[TURNS:] if what not in LAST)]
    return plans


def make_spec(name: str, hostile: bool, seed: int = SEEDS[0]) -> Spec:
    """The honest clients first, then the hostile ones: an ANN and an SNN."""
    family, pooled = METHODS[name].family or "vgg9", METHODS[name].pools_data
    width = 0.125 if METHODS[name].family else 0.25  # a ResNet-18 is larger, and learns more slowly
    batch = 8 if METHODS[name].family else 16
    # Equal clients would be one client if the data are pooled: all have all data.
    widths = (width, 1.25 * width, 1.5 * width) if pooled else (width, width, width)
    pairs = [f"1*{family}@{w}:ann,1*{family}@{w}:snn" for w in widths]
    sizes = {"data": "digits", "train_per_class": 20, "test_per_class": 30} if pooled else {"data": ON_NODES}
    changes = {
        "train_per_class": 0, "test_per_class": 0, "image_size": 8, "rounds": ROUNDS, "batch_size": batch,
        "fleet": ",".join(pairs if hostile else pairs[:-1]), "feature_dim": 32, "seed": seed, **sizes,
    }  # fmt: skip
    return with_sizes(name, **changes)


def write_data(folder: Path) -> list[str]:
    """A part of the digits for each node."""
    x, y = load_digits(return_X_y=True)
    x = (x.reshape(-1, 8, 8) * 15).astype("uint8")
    names = []
    for part in range(6):
        train, test = np.arange(part, 1200, 6), np.arange(1200 + part, 1797, 6)
        file = folder / f"{part}.npz"
        np.savez(file, x_train=x[train], y_train=y[train], x_test=x[test], y_test=y[test])
        names.append(f"npz:{file}")
    return names


class Fleet:
    def __init__(self, folder: Path) -> None:
        self.folder, self._alone, self._pool = folder, dict[str, Future[list[float]]](), ThreadPoolExecutor(1)
        self.nodes: dict[int, dict[str, Any]] = {
            i: {"client-id": i, "data": data, "state-dir": str(folder / "states")}
            for i, data in enumerate(write_data(folder))
        }
        self.restarted: set[int] = set()
        self.diaries = {i: folder / f"attacks-{i}" for i in HOSTILE}
        for i, diary in self.diaries.items():
            self.nodes[i]["hostile"] = str(diary)
        self.flower = Loopback(folder / "flower", self.nodes, PRELOAD)

    def play(self, spec: Spec, out: Path, plans: dict[int, list[str]], **config: Any) -> dict[str, Any]:
        for diary in self.diaries.values():
            diary.unlink(missing_ok=True)
        self.restarted.clear()
        reports = out.with_name(f"{out.name}-reports")
        reports.mkdir()
        app = reports / "app"
        places = {"out": str(out), "report-to": str(reports)}
        write_app(app, spec, {**places, "gathering": 600.0, "patience": 60.0, **config})
        package = app / "bridge_app"
        claims = {} if spec.method.pools_data else CLAIMS  # refused at once where the server knows the sizes
        (package / "hostile.py").write_text(APP.read_text())
        module = package / "__init__.py"
        added = f"\nfrom bridge_app.hostile import make_hostile\n\nclient = make_hostile(client, {plans}, {claims})\n"
        module.write_text(module.read_text() + added)
        self.flower.submit(app)
        follow(self.flower, reports, self.tell)
        summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
        return summary

    def tell(self, line: str) -> None:
        """Print the line. Restart a hostile node that did not reply, as a supervisor would, once in a run."""
        print(line)
        if (silent := SILENT.search(line)) and (client := int(silent[1])) in HOSTILE and client not in self.restarted:
            self.restarted.add(client)
            self.restart_node(client)

    def restart_node(self, client: int) -> None:
        for name in (f"tasks-{client}", f"node-{client}"):
            process = self.flower._processes.pop(name)
            process.terminate()  # its SuperNode takes leave of the SuperLink
            process.join(20)
            process.kill()
            process.join()
        self.flower.start_node(client, self.nodes[client])

    def alone(self, name: str) -> Future[list[float]]:
        """Accuracy of the honest clients without the others, for a few seeds: what noise there is."""
        if name not in self._alone:
            self._alone[name] = self._pool.submit(self._train_alone, name)
        return self._alone[name]

    def _train_alone(self, name: str) -> list[float]:
        found = []
        for seed in SEEDS:
            spec = make_spec(name, hostile=False, seed=seed)
            setting = None if spec.method.pools_data else self._setting(spec)
            summary = execute(spec, self.folder / f"alone-{name}-{seed}", self.folder, setting=setting)
            found.append(statistics.mean(c["accuracy"] for c in summary.to_json()["clients"]))
        return found

    def _setting(self, spec: Spec) -> Setting:
        """The data of the honest nodes, each its own."""
        own = [read_data(spec, self.nodes[i]) for i in range(HONEST)]
        infos, shards = [one.info for one in own], [one.shard for one in own]
        return Setting(own[0].task, infos, shards, ON_NODES, ON_NODES, shards[0])

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        self.flower.close()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Fleet]:
    made = Fleet(tmp_path_factory.mktemp("hostile"))
    for item in request.session.items:  # of this file, in their order
        if item.path == request.path and isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            made.alone(item.callspec.params["name"])
    yield made
    made.close()


def attacks(name: str, part: int) -> set[str]:
    """The attacks of a run in which every upload of a hostile client is refused."""
    return {what for plan in make_plans(name, part).values() for what in plan[:TURNS]}


def test_the_runs_contain_all_attacks() -> None:
    assert len(MISCHIEF) == 17
    for name in NAMES:
        assert set().union(*(attacks(name, part) for part in range(PARTS))) == set(MISCHIEF)
    assert set().union(*(attacks(name, 0) for name in NAMES)) == set(MISCHIEF)


CASES = [
    pytest.param(name, part, marks=pytest.mark.long if (name, part) == (ALWAYS, 0) else pytest.mark.exhaustive)
    for part in range(PARTS)
    for name in NAMES
]


@pytest.mark.parametrize(("name", "part"), CASES)
def test_honest_clients_learn_as_if_they_were_alone(fleet: Fleet, tmp_path: Path, name: str, part: int) -> None:
    begin = time.monotonic()
    for timeout in TIMEOUTS[bool(METHODS[name].family) :]:  # the composed ResNet-18 always needs the second
        out = tmp_path / f"run-{timeout:g}"
        limit = {"round-timeout": timeout}  # all else is as it is by default
        try:
            summary = fleet.play(make_spec(name, hostile=True), out, make_plans(name, part), **limit)
        except TooFewClients:
            if timeout == TIMEOUTS[-1]:
                raise
            continue
        if not {e["client"] for e in read_events(out) if e["event"] == "timeout"} - set(HOSTILE):
            break
    seconds = time.monotonic() - begin
    ours = statistics.mean(c["accuracy"] for c in summary["clients"] if c["id"] < HONEST)
    done = {i: diary.read_text().splitlines() for i, diary in fleet.diaries.items()}
    alone = fleet.alone(name).result()
    bound = statistics.mean(alone) - max(2 * statistics.stdev(alone), LEAST_NOISE)
    told: dict[str, Any] = {
        "method": name,
        "part": part,
        "beside two hostile": round(ours, 2),
        "alone": [round(a, 2) for a in alone],
        "bound": round(bound, 2),
        "round-timeout": timeout,
        "seconds": round(seconds),
        "events": summary["events"],
        "attacks": done,
    }
    print(json.dumps(told))
    assert bound > CHANCE  # clients that had learned nothing would not pass
    assert ours > bound
    assert attacks(name, part) <= {what for those in done.values() for what in those}
    blamed = {e["client"] for e in read_events(out) if e["event"] not in ("returned", "joined")}
    assert blamed == set(HOSTILE)  # and no honest one
    honest = {(r["round"], r["client"]) for r in read_rounds(out) if r["client"] < HONEST}
    assert honest == {(n, i) for n in range(ROUNDS + 1) for i in range(HONEST)}
