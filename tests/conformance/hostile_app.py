"""A ClientApp that is honest when it introduces itself and attacks in every turn in another way.

`test_hostile.py` copies this file into the app, so that real nodes run it. A node is hostile if its node config has
``hostile``, a file to which it adds a line for each turn.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from asfedbridge.deploy import node
from asfedbridge.engines import host

Payload = dict[str, torch.Tensor]
Parcel = tuple[Payload, dict[str, Any], dict[str, Any], dict[str, float]]  # payload, declared shapes, about, metrics
Change = Callable[[Payload, dict[str, Any], dict[str, Any], dict[str, float]], Parcel]


def filled(value: float) -> Change:
    return lambda up, declared, about, metrics: (
        {name: torch.full_like(t, value) for name, t in up.items()},
        declared,
        about,
        metrics,
    )


def reporting(**values: float) -> Change:
    told = {name.replace("_", "."): value for name, value in values.items()}
    return lambda up, declared, about, metrics: (up, declared, about, metrics | told)


def about_itself(**values: Any) -> Change:
    return lambda up, declared, about, metrics: (up, declared, about | values, metrics)


def only(keep: Callable[[str], bool]) -> Change:
    return lambda up, declared, about, metrics: (
        {name: t for name, t in up.items() if keep(name)},
        declared,
        about,
        metrics,
    )


def everything(up: Payload, declared: dict[str, Any], about: dict[str, Any], metrics: dict[str, float]) -> Parcel:
    """All that may be sent, where a method takes a few layers only."""
    return {name: up.get(name, torch.ones(shape)) for name, shape in declared.items()}, declared, about, metrics


def no_counts(up: Payload, declared: dict[str, Any], about: dict[str, Any], metrics: dict[str, float]) -> Parcel:
    """Prototypes of no examples."""
    changed = {name: torch.zeros_like(t) if name.startswith("count/") else t for name, t in up.items()}
    return changed, declared, about, metrics


CHANGES: dict[str, Change] = {
    "nan": filled(float("nan")),
    "1e30": filled(1e30),
    "3e38": filled(3e38),
    "metric of 1e300": reporting(trained_loss=1e300, local_ce=1e300),
    "accuracy of 1e38": reporting(received_accuracy=1e38, trained_accuracy=-1.7e38),
    "huge count": about_itself(train=10**8),
    "more layers than k": everything,
    "biases only": only(lambda name: name.endswith("bias")),
    "no counts": no_counts,
    "counts missing": only(lambda name: not name.startswith("count/")),
    "nothing": only(lambda name: False),
}


def other_shape(content: RecordDict) -> None:
    flat: Any = content["payload"]["flat"]  # type: ignore[index]
    flat.data = flat.data[:-100] or bytes(400)


def other_names(content: RecordDict) -> None:
    flat: Any = content["payload"]["flat"]  # type: ignore[index]
    content["payload"] = ArrayRecord({"weights": flat, "more": flat})


def other_records(content: RecordDict) -> None:
    content["payload"] = ConfigRecord({"flat": b"\x80\x04\x95"})
    content["extra"] = MetricRecord({"x": [1.0] * 1000})


def malformed_parts(content: RecordDict) -> None:
    """The array is no array: its bytes are cut off where its header would be."""
    Array.deflate = lambda self: b"Array 0\x00{"  # type: ignore[method-assign]


REPLIES: dict[str, Callable[[RecordDict], None]] = {
    "other shape": other_shape,
    "other names": other_names,
    "other records": other_records,
    "malformed parts": malformed_parts,
}
ENDS: dict[str, Callable[[], Any]] = {"hang": lambda: time.sleep(10**6), "crash": lambda: os._exit(3)}
# A hang, a crash and malformed parts take time, so they are not next to each other.
MISCHIEF = [*CHANGES, *REPLIES]
MISCHIEF[4:4], MISCHIEF[10:10] = ["hang"], ["crash"]
pack = node.pack


def choose(diary: Path, plan: list[str]) -> str:
    """The next attack. A client in quarantine has few turns, so each turn counts, not each round."""
    done = diary.read_text().splitlines() if diary.exists() else []
    what = plan[len(done) % len(plan)]
    diary.write_text("\n".join([*done, what, ""]))
    return what


def make_hostile(honest: ClientApp, plans: dict[int, list[str]], claims: dict[int, int]) -> ClientApp:
    """``plans``: the attacks of each client, in this order; ``claims``: how many examples it always says it has."""

    class Hostile(ClientApp):
        def __call__(self, message: Message, context: Context) -> Message:
            if "hostile" not in context.node_config:
                return honest(message, context)
            if message.metadata.message_type != "train":
                reply = honest(message, context)
                introduction: Any = reply.content.get("about", {})
                if introduction.get("client") in claims:
                    introduction["train"] = claims[introduction["client"]]
                return reply
            about: Any = message.content["about"]
            what = choose(Path(str(context.node_config["hostile"])), plans[about["client"]])
            print(f"hostile: round {about['round']}: {what}", flush=True)
            if what in ENDS:
                host.take_turn = lambda *args, **options: ENDS[what]()  # type: ignore[assignment]
            claimed = {"train": claims[about["client"]]} if about["client"] in claims else {}

            def changed(up: Any, declared: Any, told: Any, metrics: Any) -> RecordDict:
                parcel = dict(up), dict(declared), dict(told) | claimed, dict(metrics)
                return pack(*(CHANGES[what](*parcel) if what in CHANGES else parcel))

            node.pack = changed  # type: ignore[assignment]
            reply = honest(message, context)
            if what in REPLIES and "payload" in reply.content:
                REPLIES[what](reply.content)
            return reply

    return Hostile()
