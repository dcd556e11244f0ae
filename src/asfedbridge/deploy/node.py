"""The client side: a node's introduction and its turn. Private states stay in the node's folder."""

import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from asfedbridge.core import ClientInfo, GuardError, Method, Round, Shard, Task, one_line
from asfedbridge.deploy.codec import pack, read_count, unpack
from asfedbridge.deploy.messages import LINGER, LONGEST_REASON
from asfedbridge.deploy.node_states import NodeStates
from asfedbridge.engines import ClientHost, Keep, end_after

MAX_ROUNDS = 10**6
OWN_PROCESS = ("flwr-clientapp", "tasks")  # programs that run each turn in its own process, unlike a simulation
logger = logging.getLogger("flwr")


@dataclass(frozen=True)
class Site:
    """A node as its operator configured it: its client, its data, the folder of its private states."""

    method: Method
    task: Task
    info: ClientInfo
    shard: Shard
    states: Path
    identity: Mapping[str, str]  # digests of specification and data, which must equal the server's
    device: torch.device | str = "cpu"
    allow_rollback: bool = False  # to before the server's last checkpoint
    history: int = 0  # rounds between the oldest and the newest checkpoint that the server keeps, at most
    keep_in: Callable[[Path], Keep | None] = lambda _: None  # writes the trained client to a folder
    keep_warm: float = 0.0  # seconds for which the process of a turn waits for the next one


OpenSite = Callable[[Context], Site]


class Memory:
    """What the process of a run's turns keeps from one turn to the next: its site, with the data, and its client."""

    def __init__(self) -> None:
        self._key = ""
        self._site: Site | None = None
        self._host: ClientHost | None = None

    @property
    def patience(self) -> float:
        """Seconds to wait for the next turn; 0 if nothing is kept for it."""
        return self._site.keep_warm if self._site else 0.0

    def open(self, key: str, make: Callable[[], Site]) -> Site:
        """The site; ``key`` is the text of all settings that determine it."""
        if self._site is None or self._key != key:
            self.forget()
            self._site, self._key = make(), key
        return self._site

    def take(self, folder: Path) -> ClientHost | None:
        """The client, if its states are in ``folder``. It has to be put back after a turn that has been saved."""
        host, self._host = self._host, None
        return host if host and host.folder == folder else None

    def put(self, host: ClientHost) -> None:
        self._host = host

    def forget(self) -> None:
        self._site = self._host = None


MEMORY: Memory | None = None  # in a process of one node and run only


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
    """Always returns a reply: a ClientApp that returns none blocks its SuperNode for good."""
    if Path(sys.argv[0]).name in OWN_PROCESS:
        end_after(message.metadata.ttl - LINGER)  # wherever it hangs, also while reading its data
    try:
        content = work()
    except Exception as error:
        logger.exception("the turn failed")
        if MEMORY:
            MEMORY.forget()
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
    since = read_count(about, "since", 0, MAX_ROUNDS, what)
    safe = read_count(about, "safe", 0, rnd.index, what)
    states = NodeStates(site.states, str(about.get("run")), info.id, site.allow_rollback)
    with states.held(message.metadata.ttl / 2):
        memory = MEMORY or Memory()
        host = memory.take(states.folder) or _make_host(site, states.folder)
        states.go_to(host, rnd.index, since)
        upload = host.turn(info.id, down, rnd)
        if rnd.closing:
            memory.forget()  # it was the last turn
        else:
            states.keep(host, rnd.index, safe, site.history)
            memory.put(host)
    told = {"client": info.id, "round": rnd.index, "train": info.train_size}
    declared = {} if rnd.closing else method.uploads(task, info)
    return pack(upload.payload, declared, told, upload.metrics)


def _make_host(site: Site, folder: Path) -> ClientHost:
    options: dict[str, Any] = {"device": site.device, "folder": folder, "keep": site.keep_in(folder)}
    return ClientHost(site.method, site.task, [site.info], [site.shard], capacity=1, **options)
