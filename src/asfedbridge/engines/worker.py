"""A worker process of the pool: hosts its clients and handles one request after the other.

This module is imported before workers are forked; importing it must not start threads.
"""

import os
import signal
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from asfedbridge.core.client import Shard
from asfedbridge.core.errors import BadInput, Damaged, Diverged
from asfedbridge.core.method import Method
from asfedbridge.core.payload import Payload
from asfedbridge.core.plugins import load_all
from asfedbridge.core.process import end_with_parent
from asfedbridge.core.task import ClientInfo, Round, Task
from asfedbridge.engines.host import ClientHost, Keep, Progress, Reader
from asfedbridge.engines.process import prepare_process
from asfedbridge.engines.wire import pack, unpack
from asfedbridge.models.registry import Model, register_unnamed

IMPORTABLE = "define classes and functions at the top level of a module or of the script, or use engine=local"


@dataclass(frozen=True)
class Assignment:
    """Everything a worker needs. Its objects may be instances of classes defined by plugins."""

    method: Method
    name: str  # the method's name: its class may be registered in the parent only
    models: Mapping[str, Model]  # models registered without a name in the parent
    task: Task
    infos: Sequence[ClientInfo]
    shards: Sequence[Shard]
    device: torch.device | str
    capacity: int
    folder: Path
    reader: Reader | None
    keep: Keep | None


def serve(connection: Connection, threads: int, watched: bool, files: Sequence[str]) -> None:
    """Load plugins, receive the assignment, then answer requests until the connection is closed."""
    for ending in (signal.SIGINT, signal.SIGHUP):  # the terminal sends these to every process
        signal.signal(ending, signal.SIG_IGN)  # the parent stops its workers
    end_with_parent()
    prepare_process(threads)

    def tell(info: ClientInfo, *epoch: Any) -> None:
        connection.send_bytes(pack({"epoch": [info.id, *epoch]}))

    with suppress(EOFError, ConnectionError):
        try:
            clients = _start(connection, files, tell if watched else None)
        except (EOFError, ConnectionError):
            raise
        except Exception as error:
            connection.send_bytes(pack({"error": _describe(error)}))
            return
        connection.send_bytes(pack({}))
        while True:
            header, tensors = unpack(connection.recv_bytes())
            try:
                answer = pack(*_answer(clients, header, tensors))
            except Exception as error:
                answer = pack({"error": _describe(error)})
            connection.send_bytes(answer)


def _start(connection: Connection, files: Sequence[str], tell: Progress | None) -> ClientHost:
    load_all(files)
    try:
        work: Assignment = connection.recv()
    except (AttributeError, ImportError) as error:
        raise BadInput(f"a worker process cannot import an object of the run ({error}); {IMPORTABLE}") from None
    type(work.method).name = work.name
    register_unnamed(work.models)
    return ClientHost(
        work.method,
        work.task,
        work.infos,
        work.shards,
        device=work.device,
        progress=tell,
        capacity=work.capacity,
        folder=work.folder,
        reader=work.reader,
        keep=work.keep,
    )


def _answer(clients: ClientHost, header: dict[str, Any], tensors: Payload) -> tuple[dict[str, Any], Payload]:
    match header["do"]:
        case "turn":
            upload = clients.turn(header["client"], tensors, Round(*header["round"]))
            return {"client": header["client"], "metrics": upload.metrics}, upload.payload
        case "diagnose":
            return {"client": header["client"]}, clients.diagnose(header["client"])
        case "save":
            return {"states": clients.save()}, {}
        case "restore":
            clients.restore(header["states"])
            return {}, {}
    raise ValueError(f"unknown request to a worker: '{header['do']}'")


def _text(name: object) -> str | None:
    return None if name is None else os.fsdecode(name) if isinstance(name, str | bytes | os.PathLike) else str(name)


def _describe(error: Exception) -> dict[str, Any]:
    """An exception as plain values, for `pool.rebuild_error`."""
    kind = next(
        (k.__name__ for k in (Damaged, BadInput, Diverged, OSError) if isinstance(error, k)), type(error).__name__
    )
    plain = {"kind": kind, "text": str(error), "trace": traceback.format_exc()}
    return plain | (
        {"errno": error.errno, "strerror": error.strerror, "filename": _text(error.filename)}
        if isinstance(error, OSError)
        else {}
    )
