"""Claim: time per round and memory depend on the number of participants, not on the number of clients.

    python benchmarks/clients.py [--sizes N,...] [--quick] [--repeats N] [--threads N] [--json]

Compared: AS-FedBridge rounds with 10, 100 and 1,000 clients (--sizes) of which 10 take part, width 0.25, T = 4, 32
training and 16 test images each, batch 32, local engine. Every size runs in its own process. Reported per size: seconds
per round, the peak resident memory of the process (VmHWM, including imports and data), the memory before the engine was
built, and the bytes of image data.

Participants are 5 ANN and 5 SNN clients, drawn in each round. participation=10/n would draw more SNNs in one size than
in another, and the times would not be comparable. With 10 clients the participants are always the same, with 1,000
almost always new: the cost of the first use of a client is part of the claim.

Images: 1,000 clients with 48 images each would take 147 MB and hide what is measured here, the cost of a client without
its data. All clients therefore share a pool of 2,000 images (6 MB): each shard is a view of 48 consecutive images, and
the shards of neighbouring clients overlap. With separate data, add 3,072 bytes per image.

Ten clients are in memory at any time. The least recently used one is evicted to a temporary folder and read back when
drawn again. No answers are compared: different federations compute different things.
"""

import argparse
import functools
import os
import sys
from typing import Any

import torch

from asfedbridge.core.payload import size_in_bytes
from asfedbridge.core.task import ClientInfo, Round
from asfedbridge.engines.local import LocalEngine
from asfedbridge.engines.loop import play_round
from asfedbridge.engines.process import prepare_process
from asfedbridge.engines.turn import build_client
from asfedbridge.methods.as_fedbridge import ASFedBridge
from child import process_memory
from federation import make_images, make_infos, make_shard, make_task
from sidebyside import Benchmark, Case, Contender, Work, main

SMALLEST = "10 clients"
ROUNDS = 1000  # only a few are played: the learning rate hardly changes


def participants(infos: list[ClientInfo], count: int, index: int) -> list[ClientInfo]:
    """``count`` clients, half ANNs and half SNNs, in order of id."""
    generator = torch.Generator().manual_seed(index)
    half = len(infos) // 2
    chosen = []
    for kind in (infos[:half], infos[half:]):
        chosen += [kind[i] for i in torch.randperm(half, generator=generator)[: count // 2].tolist()]
    return sorted(chosen, key=lambda c: c.id)


def federation(count: int, case: Case) -> Work:
    prepare_process()
    train, test = case["images"], case["tested"]
    x, y = make_images(case["pool"], case["size"])
    last = case["pool"] - train - test
    starts = [i * last // max(1, count - 1) for i in range(count)]
    shards = [make_shard(x[s : s + train + test], y[s : s + train + test], train) for s in starts]
    infos = make_infos(count, case["width"], case["T"], train, test)
    task = make_task(case["size"], ROUNDS, epochs=1, batch_size=32)
    method = ASFedBridge(bridge_width=case["bridge"])
    state_bytes = size_in_bytes(build_client(method, task, infos[-1], shards[-1]).state_dict())
    before = process_memory()["VmRSS"]
    engine = LocalEngine(method, task, infos, shards, at_work=case["working"])
    server = method.server_init(task, infos)
    played = 0

    def step() -> None:
        nonlocal server, played
        chosen = participants(infos, case["working"], played)
        server, _, _ = play_round(method, task, engine, server, Round(played, ROUNDS), chosen)
        played += 1

    def facts() -> dict[str, Any]:
        return {
            "peak_bytes": process_memory()["VmHWM"],
            "before_engine_bytes": before,
            "data_bytes": x.numel(),
            "one_state_bytes": state_bytes,
        }

    return Work(step, facts=facts)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--sizes",
        type=lambda text: [int(size) for size in text.split(",")],
        default=[10, 100, 1000],
        metavar="N,...",
        help="numbers of clients, the first one 10 (default: 10,100,1000)",
    )


def cases(args: argparse.Namespace) -> list[Case]:
    if args.quick:
        return [
            {"sizes": [10, 20], "working": 2, "images": 4, "tested": 2, "pool": 50, "size": 8, "width": 0.125}
            | {"bridge": 0.2, "T": 2}
        ]
    return [
        {"sizes": args.sizes, "working": 10, "images": 32, "tested": 16, "pool": 2000, "size": 32, "width": 0.25}
        | {"bridge": 1.0, "T": 4}
    ]


def contenders(case: Case) -> list[Contender]:
    return [Contender(f"{count} clients", functools.partial(federation, count)) for count in case["sizes"]]


def growth(case: Case, rows: dict[str, dict[str, Any]]) -> dict[str, float]:
    peaks = {name: row["facts"]["peak_bytes"] for name, row in rows.items() if "facts" in row}
    return {f"peak memory / {SMALLEST}, {n}": peak / peaks[SMALLEST] for n, peak in peaks.items() if SMALLEST in peaks}


BENCHMARK = Benchmark(
    script=os.path.abspath(__file__),
    claim="a round of ten participants among 10, 100 and 1,000 clients: seconds and peak memory",
    baseline=SMALLEST,
    cases=cases,
    contenders=contenders,
    derive=growth,
    options=add_options,
)

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
