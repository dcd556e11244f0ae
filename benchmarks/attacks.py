"""Question: which accuracy do honest clients reach if a fifth of the clients is Byzantine, by rule and method?

    python benchmarks/attacks.py [--quick] [--methods A,B] [--attacks A,B] [--defences A,B] [--seeds 0,1,2]
                                 [--set key=value] [--out FILE.jsonl] [--json]

A table of attacks x defences for every method: mean and standard deviation over seeds of the accuracy of the honest
clients after the closing visit. Two of ten clients are Byzantine, one ANN and one SNN. The runs are `cpu` on CIFAR-10
with IID shards, 20 rounds instead of 80 and 300 test images of each class; `--set` changes that. With `--out`, finished
cells are appended to the file, and a second call with the same file goes on after them.

Attacks; an update is the upload minus the download (for prototypes and layers, the upload itself):
- none: no client is Byzantine; accuracy is still that of the same eight clients;
- sign: the update times -4;
- noise: the update plus Gaussian noise of ten times its root mean square;
- label: the client trains honestly on reversed labels (c becomes C - 1 - c);
- 1e30: every number of the upload is 1e30;
- nan: every number of the upload is NaN. The payload check refuses it before aggregation: it runs only with the mean.

Defences: the rules of `method.aggregation`, with method.trim=0.2, two of ten. `guard` is the mean with the run's norm
guard, which is off for all other defences. A guard that refuses nothing changes nothing, so its run has the result of
the mean. The upload of a Byzantine client is replaced on its way to the server. If a Byzantine client diverges itself,
it repeats its last upload. An honest client that diverges after a poisoned download counts as failed in that round and
keeps its last state, as a node on a network does. A star marks cells in which that happened or the server stopped; the
accuracy is then that of the clients in their last state.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import Any

import torch

from asfedbridge.cli.arguments import seeds as seeds_of
from asfedbridge.core import payload, seeds
from asfedbridge.core.errors import Diverged
from asfedbridge.core.payload import GuardError, Payload
from asfedbridge.core.task import ClientInfo, Round, Upload
from asfedbridge.engines.failures import Event, Reply, Tolerance
from asfedbridge.engines.local import LocalEngine
from asfedbridge.engines.process import prepare_process
from asfedbridge.engines.turn import evaluate
from asfedbridge.runs.callback import CallbackList
from asfedbridge.runs.folder import RunFolder
from asfedbridge.runs.recipes import cpu, quickstart
from asfedbridge.runs.run import play
from asfedbridge.runs.setting import Setting, prepare
from asfedbridge.runs.spec import Spec, apply_overrides
from asfedbridge.runs.toml import parse_assignment
from tables import machine, versions

METHOD_NAMES = ("fedavg", "as-fedbridge", "fedproto", "fml", "fedtgp", "fedfree", "sfedhifi")
BYZANTINE = (1, 6)  # client ids out of 0 to 9; the first five are ANNs
SIGN, NOISE = -4.0, 10.0
DEFENCES = ("mean", "trimmed", "median", "krum", "geometric", "guard")
Attack = Callable[[Payload, Payload, torch.Generator], Payload]  # upload, start of the update, random generator


def flip(up: Payload, start: Payload, draws: torch.Generator) -> Payload:
    return {name: start[name] + SIGN * (t - start[name]) for name, t in up.items()}


def drown(up: Payload, start: Payload, draws: torch.Generator) -> Payload:
    size = sum(t.numel() for t in up.values())
    rms = (sum((t - start[name]).double().square().sum().item() for name, t in up.items()) / max(1, size)) ** 0.5
    return {name: t + NOISE * rms * torch.randn(t.shape, generator=draws) for name, t in sorted(up.items())}


def fill(value: float) -> Attack:
    return lambda up, start, draws: {name: torch.full_like(t, value) for name, t in up.items()}


ATTACKS: dict[str, Attack | None] = {
    "none": None, "sign": flip, "noise": drown, "label": None, "1e30": fill(1e30), "nan": fill(float("nan")),
}  # fmt: skip


class Besieged:
    """A local engine that replaces the uploads of Byzantine clients and reports divergence as an event."""

    def __init__(self, engine: LocalEngine, spec: Spec, attack: Attack | None) -> None:
        self.engine, self.spec, self.attack = engine, spec, attack
        self.closing: dict[int, float] = {}  # accuracy at the closing visit
        self.failed: list[Event] = []  # of honest clients
        self.sent: dict[int, Upload] = {}  # last uploads of Byzantine clients
        self.save, self.restore, self.close = engine.save, engine.restore, engine.close
        self.describe, self.clients = engine.describe, engine.clients

    def train(self, rnd: Round, downs: Mapping[int, Payload]) -> dict[int, Reply]:
        return {i: self.turn(i, downs[i], rnd) for i in downs}

    def turn(self, client: int, down: Payload, rnd: Round) -> Reply:
        host = self.engine.host
        before = payload.clone(host.state(client))
        try:
            up = host.turn(client, down, rnd)
        except (Diverged, GuardError) as error:
            host.client(client).load_state_dict(before)
            if client in self.sent and not rnd.closing:
                return self.sent[client]
            event = Event("error", client, str(error))
            self.failed += [] if client in BYZANTINE else [event]
            return event
        if rnd.closing:
            self.closing[client] = up.metrics["received.accuracy"]
        elif self.attack and client in BYZANTINE:
            zeros = {name: torch.zeros_like(t) for name, t in up.payload.items()}
            start = {name: t for name, t in down.items() if name in zeros} if self.spec.method.continues else {}
            draws = seeds.generator(self.spec.seed, "attack", client, rnd.index)
            up = self.sent[client] = Upload(self.attack(up.payload, zeros | start, draws), up.metrics)
        return up

    def accuracy(self, client: int) -> float:
        """At the closing visit or, for a client that it did not reach, of its current state."""
        if client in self.closing:
            return self.closing[client]
        found = self.engine.host.client(client)
        return evaluate(found, lambda x: found.backbone(x).logits)["accuracy"]


def make_spec(method: str, defence: str, seed: int, changes: Mapping[str, Any], quick: bool) -> Spec:
    sizes = (
        {"rounds": 2, "T": 2, "fleet": cpu(method).fleet, "train_per_class": 30}
        if quick
        else {"rounds": 20, "partition": "iid", "test_per_class": 300}
    )
    defended = {
        "seed": seed,
        "method.trim": 0.2,
        "method.aggregation": "mean" if defence == "guard" else defence,
        **({} if defence == "guard" else {"norm_guard": 0.0}),
    }
    spec = apply_overrides(quickstart(method) if quick else cpu(method), {**sizes, **defended, **changes})
    return apply_overrides(spec, {"evaluate_every": spec.rounds})


def reverse_labels(setting: Setting) -> None:
    for i in BYZANTINE:
        shard = setting.shards[i]
        shard.y_train = shard._labels = setting.task.classes - 1 - shard.y_train  # of batches in order, and shuffled


def measure(spec: Spec, attack: str, data_root: Path) -> dict[str, Any]:
    """One cell: a whole run, and the accuracy of its honest clients."""
    prepare_process(spec.threads)
    setting = prepare(spec, data_root)
    if attack == "label":
        reverse_labels(setting)
    refused: list[Event] = []

    def tell(rnd: Round, event: Event) -> None:
        refused.extend([event] if event.what == "refused" else [])

    begin = time.process_time()
    with tempfile.TemporaryDirectory(prefix="asfedbridge-") as place:
        folder = RunFolder(Path(place) / "run", spec, resume=False)
        inner = LocalEngine(spec.method, setting.task, setting.clients, setting.shards, folder=Path(place) / "states")
        with closing(Besieged(inner, spec, ATTACKS[attack])) as engine:
            stopped = ""
            try:
                play(spec, setting, folder, CallbackList([]), engine, tolerance=Tolerance(tell, min_clients=1))
            except Exception as error:  # an error that stops the server is a result of this cell
                stopped = f"{type(error).__name__}: {error}".splitlines()[0]
            honest = [c for c in setting.clients if c.id not in BYZANTINE]
            accuracy = {kind: mean_of(engine, [c for c in honest if c.kind == kind]) for kind in ("ann", "snn")}
            return {
                "accuracy": mean_of(engine, honest), **accuracy, "failed": len(engine.failed), "stopped": stopped,
                "refused": len(refused), "seconds": time.process_time() - begin,
            }  # fmt: skip


def mean_of(engine: Besieged, clients: Sequence[ClientInfo]) -> float:
    return sum(engine.accuracy(c.id) for c in clients) / len(clients)


def show(cells: Sequence[Mapping[str, Any]], defences: Sequence[str]) -> str:
    """A Markdown table with rows of method and attack, and columns of defences."""
    rows = [["method", "attack", *defences], ["---", "---", *["---:"] * len(defences)]]
    for method, attack in dict.fromkeys((cell["method"], cell["attack"]) for cell in cells):
        row = [cell for cell in cells if (cell["method"], cell["attack"]) == (method, attack)]
        rows.append(
            [f"`{method}`", attack, *(_entry([cell for cell in row if cell["defence"] == one]) for one in defences)]
        )
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _entry(seeds: Sequence[Mapping[str, Any]]) -> str:
    """One run for each seed."""
    if not seeds:
        return ""
    found = [cell["accuracy"] for cell in seeds]
    spread = f" ± {statistics.stdev(found):.1f}" if len(found) > 1 else ""
    return f"{statistics.mean(found):.1f}{spread}{'*' if any(c['failed'] or c['stopped'] for c in seeds) else ''}"


class Results:
    """Finished cells, in memory and one JSON object a line in a file."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.cells: dict[tuple[str, str], dict[str, Any]] = {}  # by digest of the specification, and attack
        if not path or not path.exists():
            return
        whole, _, cut = path.read_text().rpartition("\n")
        for line in whole.splitlines():
            self.add(json.loads(line), write=False)
        if cut:  # a call was killed while it wrote this line
            path.write_text(whole + "\n" * bool(whole))

    def add(self, cell: dict[str, Any], write: bool = True) -> None:
        self.cells[cell["spec"], cell["attack"]] = cell
        if self.path and write:
            with self.path.open("a") as file:
                file.write(json.dumps(cell) + "\n")


def chosen(known: Sequence[str]) -> Callable[[str], list[str]]:
    def read(text: str) -> list[str]:
        names = text.split(",")
        if unknown := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(f"unknown {unknown[0]!r}; known: {', '.join(known)}")
        return names

    return read


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two rounds with few images, only to check that it runs")
    parser.add_argument("--json", action="store_true", help="results as one line of JSON on stdout")
    parser.add_argument("--data-root", type=Path, default=Path("data"))
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="change a field of the specification"
    )
    for name, known in (("methods", METHOD_NAMES), ("attacks", tuple(ATTACKS)), ("defences", DEFENCES)):
        parser.add_argument(f"--{name}", type=chosen(known), default=list(known))
    parser.add_argument("--seeds", type=seeds_of, default=[0], metavar="0,1,2", help="one run per seed and cell")
    parser.add_argument("--out", type=Path, metavar="FILE.jsonl", help="append finished cells, and skip those in it")
    args = parser.parse_args()
    changes = dict(parse_assignment(entry) for entry in args.set)
    results, cells = Results(args.out), list[dict[str, Any]]()
    for method, seed, attack, defence in product(args.methods, args.seeds, args.attacks, args.defences):
        if attack == "nan" and defence != "mean":
            continue
        spec = make_spec(method, defence, seed, changes, args.quick)
        cell = results.cells.get((spec.digest(), attack))
        if not cell:
            cell = {"method": method, "attack": attack, "defence": defence, "seed": seed, "spec": spec.digest()}
            results.add(cell := cell | measure(spec, attack, args.data_root))
            words = f"{cell['accuracy']:5.1f}, failed {cell['failed']}, refused {cell['refused']}"
            line = f"{method} {attack} {defence} seed {seed}: {words}, {cell['seconds']:.1f} s {cell['stopped']}"
            print(line, file=sys.stderr, flush=True)
        cells.append(cell)
    about = {"quick": args.quick, "changes": changes, "machine": machine(), "versions": versions()}
    one = about["machine"]
    print(show(cells, args.defences), file=sys.stderr if args.json else sys.stdout)
    print(f"{one['processor']}, {one['cores']} cores, 1 thread, n = {len(args.seeds)}", file=sys.stderr)
    if args.json:
        print(json.dumps({"benchmark": "attacks", **about, "cells": cells}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
