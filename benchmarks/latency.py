"""Claim: the overhead of a round is negligible compared with the training in it.

    python benchmarks/latency.py [--quick] [--repeats N] [--threads N] [--json]
    python benchmarks/latency.py --network [4,10,4x4] [--repeats N] [--case K] [--only NAME,...] [--markdown]

Compared: milliseconds per round of a method that does nothing, with 10 clients over 50 rounds and the closing visit:
the local engine, the pool with two workers, and the local engine with a run folder (records, TensorBoard events and a
checkpoint of every client each round, flushed to the disk). This measures the engine's own work: payload checks, the
checksum of a model's weights that shows whether it has changed since its last evaluation, messages and files. Backbones
have the minimum width (0.0625) and two test images each: the checksum and the checkpoint grow with the backbone, the
rest does not.

Equal: nothing is computed, so the number of turns is compared.

With --network: seconds per round of AS-FedBridge with a Bridge of realistic size and few images (network.py), in whole
runs: local, pool, Flower on loopback with forked tasks, Flower as shipped and Flower's own simulation (Ray), with 4 and
10 clients; and the memory of the server's process, with private models of the same and of four times the width. The
cost of Flower is the difference to local, which trains the same. Equal: every bit of the server's last state.
"""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

import network
from asfedbridge.core.client import Client
from asfedbridge.core.method import Method
from asfedbridge.core.payload import Payload, Shapes
from asfedbridge.core.task import ClientInfo, Round, Task, Upload
from asfedbridge.data.loader import Shard
from asfedbridge.engines.local import LocalEngine
from asfedbridge.engines.loop import AfterRound, Engine, federate
from asfedbridge.engines.pool import PoolEngine
from asfedbridge.runs.recipes import quickstart
from federation import Recorded, make_images, make_infos, make_shard, make_task
from sidebyside import Benchmark, Case, Contender, Work, main


@dataclass(frozen=True)
class Nothing(Method):
    """Exchanges nothing and learns nothing. It is not registered."""

    name: ClassVar[str] = "nothing"

    def uploads(self, task: Task, client: ClientInfo) -> Shapes:
        return {}

    def downloads(self, task: Task, client: ClientInfo) -> Shapes:
        return {}

    def client_round(self, client: Client, rnd: Round) -> Upload:
        return Upload()


ALIVE = ExitStack()  # resources that a child holds until it is killed
Setting = tuple[Method, Task, Sequence[ClientInfo], Sequence[Shard]]


def setting(case: Case) -> Setting:
    infos = make_infos(case["clients"], width=0.0625, T=2, train=2, test=2)
    shards = [make_shard(*make_images(4, 8, info.id), 2) for info in infos]
    return Nothing(), make_task(8, case["rounds"], 1, 2), infos, shards


def work(engine: Engine, made_from: Setting, watch: AfterRound | None = None) -> Work:
    method, task = made_from[:2]
    taken = 0

    def count(
        rnd: Round,
        clients: Sequence[ClientInfo],
        sent: Mapping[int, int],
        ups: Mapping[int, Upload],
        state: Payload,
    ) -> None:
        nonlocal taken
        taken += len(ups)
        if watch:
            watch(rnd, clients, sent, ups, state)

    def step() -> None:
        nonlocal taken
        taken = 0
        federate(method, task, engine, count)

    return Work(step, lambda: {"turns": np.array(taken)})


def local(case: Case) -> Work:
    made_from = setting(case)
    return work(LocalEngine(*made_from), made_from)


def pool(case: Case) -> Work:
    made_from = setting(case)
    return work(ALIVE.enter_context(closing(PoolEngine(*made_from, workers=2, threads=1))), made_from)


def with_folder(case: Case) -> Work:
    made_from = setting(case)
    recorded = Recorded(replace(quickstart(), method=made_from[0]))
    engine = LocalEngine(*made_from, folder=recorded.states)
    return work(engine, made_from, recorded.watch(engine, *made_from[1:]))


def cases(args: argparse.Namespace) -> list[Case]:
    if args.network:
        return [case | {"only": args.only} for case in network.cases(args.network, args.quick)]
    return [{"clients": 2, "rounds": 3} if args.quick else {"clients": 10, "rounds": 50}]


def contenders(case: Case) -> list[Contender]:
    if "only" in case:
        return [
            c for c in network.contenders(case) if not case["only"] or c.name in ("local", *case["only"].split(","))
        ]
    return [
        Contender("local", local),
        Contender("pool, 2 workers", pool, threads=1),
        Contender("local, run folder", with_folder),
    ]


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--network", nargs="?", const="4,10,4x4", type=network.check, metavar="CASES", help="numbers of clients, xWIDER"
    )
    parser.add_argument("--only", default="", metavar="NAME,...", help=f"beside local: {', '.join(network.NAMES[1:])}")


def derive(case: Case, rows: dict[str, dict[str, Any]]) -> dict[str, float]:
    finished = {name: row for name, row in rows.items() if "median" in row}
    if "only" not in case:
        return {f"ms per round, {name}": 1e3 * row["median"] / case["rounds"] for name, row in finished.items()}
    seconds = {name: row["facts"]["seconds a round"] for name, row in finished.items()}
    return {f"s per round above local, {name}": s - seconds["local"] for name, s in seconds.items() if name != "local"}


BENCHMARK = Benchmark(
    script=os.path.abspath(__file__),
    claim="overhead of a round: without training or (--network) with little of it",
    baseline="local",
    cases=cases,
    contenders=contenders,
    options=options,
    derive=derive,
)

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
