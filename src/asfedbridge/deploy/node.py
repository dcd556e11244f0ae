"""The client side: who a node is, and its turn. What is private stays in the node's folder."""

import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from asfedbridge.core import ClientInfo, GuardError, Method, Round, Shard, Task
from asfedbridge.deploy.codec import pack, read_count, unpack
from asfedbridge.deploy.messages import LINGER, one_line
from asfedbridge.deploy.node_states import NodeStates
from asfedbridge.engines import ClientHost, end_after

MOST_ROUNDS = 10**6
OWN_PROCESS = ("flwr-clientapp", "tasks")  # programs that have a process for each turn; a simulation's have not
LONGEST_REASON = 300  # characters: the traceback stays in the node's own log
logger = logging.getLogger("flwr")


@dataclass(frozen=True)
class Site:
    """A node as its operator set it up: whose client it is, its data, where its private states go."""

    method: Method
    task: Task
    info: ClientInfo
    shard: Shard
    states: Path
    identity: Mapping[str, str]  # of specification and data: the server's must be the same
    device: torch.device | str = "cpu"


OpenSite = Callable[[Context], Site]


def make_client_app(open_site: OpenSite) -> ClientApp:
    app = ClientApp()

    @app.query()
    def introduce(message: Message, context: Context) -> Message:
        return _answer(message, lambda: _introduction(open_site(context)))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return _answer(message, lambda: _turn(message, open_site(context)))

    return app


def _answer(message: Message, work: Callable[[], RecordDict]) -> Message:
    """A reply, whatever happens: a ClientApp that returns none leaves its SuperNode deaf for good."""
    if Path(sys.argv[0]).name in OWN_PROCESS:
        end_after(message.metadata.ttl - LINGER)  # wherever it hangs: in reading its data, too
    try:
        content = work()
    except Exception as error:
        logger.exception("the turn failed")
        reason = " ".join(str(error).split())[:LONGEST_REASON]
        content = RecordDict({"error": ConfigRecord({"kind": type(error).__name__, "reason": reason})})
    return Message(content, reply_to=message)


def _introduction(site: Site) -> RecordDict:
    info, task = site.info, site.task
    about: dict[str, Any] = {
        "client": info.id,
        "kind": info.full_kind,
        "model": f"{info.model}@{info.width:g}",
        "train": info.train_size,
        "test": info.test_size,
        "shape": [task.classes, task.channels, task.image_size, task.frames],
        **{f"identity.{name}": value for name, value in site.identity.items()},
    }
    return RecordDict({"about": ConfigRecord(about)})


def _turn(message: Message, site: Site) -> RecordDict:
    info, method, task = site.info, site.method, site.task
    what = f"download to {info.label}"
    down, about, _ = unpack(message.content, method.downloads(task, info), task.compress, what)
    if about.get("client") != info.id:
        raise GuardError(f"{what}: it is for client {one_line(str(about.get('client')), 20)}")
    total = read_count(about, "total", 1, task.rounds, what) if "total" in about else task.rounds
    rnd = Round(read_count(about, "round", 0, total, what), total)
    since = read_count(about, "since", 0, MOST_ROUNDS, what)
    safe = read_count(about, "safe", 0, MOST_ROUNDS, what)
    states = NodeStates(site.states, str(about.get("run")), info.id)
    with states.held(message.metadata.ttl / 2):
        host = ClientHost(method, task, [info], [site.shard], device=site.device, capacity=1, folder=states.folder)
        states.go_to(host, rnd.index, since)
        upload = host.turn(info.id, down, rnd)
        if not rnd.closing:
            states.keep(host, rnd.index, safe)
    told = {"client": info.id, "round": rnd.index, "train": info.train_size}
    declared = {} if rnd.closing else method.uploads(task, info)
    return pack(upload.payload, declared, told, upload.metrics)
