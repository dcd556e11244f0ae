"""The pool engine: clients are distributed over worker processes. Gives the same bits as the local engine."""

import heapq
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import torch

from asfedbridge.core.client import Shard
from asfedbridge.core.errors import BadInput, Damaged, Diverged, WorkerLost
from asfedbridge.core.method import Method
from asfedbridge.core.payload import Payload
from asfedbridge.core.plugins import FILES
from asfedbridge.core.process import block_terminal_signals, count_cores
from asfedbridge.core.task import ClientInfo, Round, Task, Upload, first_of_each
from asfedbridge.engines.host import Keep, Progress, Reader, Turns, owner, temporary_folder
from asfedbridge.engines.process import is_stopped, worker_context
from asfedbridge.engines.wire import pack, unpack
from asfedbridge.engines.worker import IMPORTABLE, Assignment, serve
from asfedbridge.models.registry import UNNAMED
from asfedbridge.models.zoo import outline_backbone

SMALL = 2_000_000  # trainable scalars of a backbone; below this, a second thread does not pay off
PATIENCE = 2.0  # seconds that an idle worker has to exit
LOOK = 10.0  # seconds between checks of busy workers
STARTING = "while starting"


def allot(
    task: Task, clients: Sequence[ClientInfo], at_work: int, workers: int = 0, threads: int = 0
) -> tuple[int, int]:
    """The number of workers and of threads in each; 0 selects the default.

    Default: one worker per core that this process may use, but no more than participants in a round. One thread each
    for small backbones, an equal share of the cores for large ones, because more threads than cores slow each other
    down.
    """
    cores = count_cores()
    workers = min(workers or min(cores, at_work), len(clients))
    if not threads:
        kinds = first_of_each(clients)
        largest = max(sum(p.numel() for p in outline_backbone(task, c).parameters()) for c in kinds)
        threads = 1 if largest < SMALL else max(1, cores // workers)
    return workers, threads


def cost(client: ClientInfo) -> float:
    """The relative cost of a turn: examples times time steps times the size of a convolution."""
    return max(1, client.train_size) * client.T * client.width**2


def pin(clients: Sequence[ClientInfo], workers: int) -> list[list[ClientInfo]]:
    """The clients of each worker: in order of decreasing cost, each goes to the worker with the least work so far."""
    loads = [(0.0, number) for number in range(workers)]
    pinned: list[list[ClientInfo]] = [[] for _ in range(workers)]
    for client in sorted(clients, key=lambda c: (-cost(c), c.id)):
        load, number = loads[0]
        pinned[number].append(client)
        heapq.heapreplace(loads, (load + cost(client), number))
    return pinned


@dataclass
class Worker:
    number: int
    clients: dict[int, ClientInfo]  # in order of decreasing cost
    process: BaseProcess
    connection: Connection
    doing: str | None = None  # requests not answered yet
    stopped: bool = False  # whether this was reported


class PoolEngine:
    """``at_work`` limits the number of clients in memory over all workers (0: no limit)."""

    def __init__(
        self,
        method: Method,
        task: Task,
        infos: Sequence[ClientInfo],
        shards: Sequence[Shard],
        *,
        device: torch.device | str = "cpu",
        progress: Progress | None = None,
        at_work: int = 0,
        folder: Path | None = None,
        workers: int = 0,
        threads: int = 0,
        reader: Reader | None = None,
        keep: Keep | None = None,
        turns: Turns | None = None,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        """``tell`` is called with a readable line when a worker is stopped."""
        self._tell, self._looked = tell, time.monotonic()
        self._infos = {info.id: info for info in infos}
        self._progress, self._turns = progress, turns
        at_work = at_work or len(self._infos)
        workers, self._threads = allot(task, infos, at_work, workers, threads)
        everybody = at_work >= len(self._infos)
        folder = folder or temporary_folder(self)
        shard_of = dict(zip(self._infos, shards, strict=True))
        context = worker_context(serve.__module__, "asfedbridge.methods")
        self._workers: list[Worker] = []
        try:
            for number, mine in enumerate(pin(infos, workers)):
                ours, theirs = context.Pipe()
                process = context.Process(
                    target=serve, args=(theirs, self._threads, progress is not None, list(FILES)), daemon=True
                )
                with block_terminal_signals():
                    process.start()
                theirs.close()  # the worker then has the only other end, so its death is noticed
                self._workers.append(Worker(number, {c.id: c for c in mine}, process, ours))
            models = {c.model: UNNAMED[c.model] for c in infos if c.model in UNNAMED}  # not those of other runs
            for worker in self._workers:
                mine = list(worker.clients.values())
                room = len(mine) if everybody else -(-at_work // workers)
                own = [shard_of[c.id] for c in mine]
                work = Assignment(method, method.name, models, task, mine, own, device, room, folder, reader, keep)
                self._assign(worker, work)
            for _ in self._answers():
                pass
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):  # too many processes or open files, not a problem of the user's disk
                raise BadInput(f"workers={workers}: cannot start so many processes ({error}); use fewer") from error
            raise

    def describe(self) -> dict[str, Any]:
        return {"engine": "pool", "workers": len(self._workers), "threads": self._threads}

    def clients(self) -> Sequence[ClientInfo]:
        return list(self._infos.values())

    def train(self, rnd: Round, downs: Mapping[int, Payload]) -> dict[int, Upload]:
        """Each worker runs one client's turn at a time, so at most one download per worker is in memory."""

        def ask(worker: Worker, i: int) -> None:
            request = {"do": "turn", "client": i, "round": [rnd.index, rnd.total]}
            self._ask(worker, f"while {worker.clients[i].label} was in round {rnd.index}", request, downs[i])
            self._note(i, ended=False)

        uploads = {}
        for header, tensors in self._visit(downs, ask):
            uploads[header["client"]] = Upload(tensors, header["metrics"])
            self._note(header["client"], ended=True)
        return uploads

    def _note(self, client: int, ended: bool) -> None:
        if self._turns:
            self._turns(self._infos[client], ended)

    def diagnose(self, clients: Collection[int]) -> dict[int, Payload]:
        """As for the local engine."""

        def ask(worker: Worker, i: int) -> None:
            doing = f"while {worker.clients[i].label} was diagnosed"
            self._ask(worker, doing, {"do": "diagnose", "client": i})

        return {h["client"]: tensors for h, tensors in self._visit(clients, ask)}

    def _visit(
        self, clients: Collection[int], ask: Callable[[Worker, int], None]
    ) -> Iterator[tuple[dict[str, Any], Payload]]:
        """Ask every worker for its clients one after the other; yields answers as they arrive.

        The worker continues with its next client when the caller asks for the next answer.
        """
        queues = {w.number: deque(i for i in w.clients if i in clients) for w in self._workers}

        def go_on(worker: Worker) -> None:
            if queues[worker.number]:
                ask(worker, queues[worker.number].popleft())

        for worker in self._workers:
            go_on(worker)
        for worker, header, tensors in self._answers():
            yield header, tensors
            go_on(worker)

    def save(self) -> Mapping[str, str]:
        for worker in self._workers:
            self._ask(worker, "while its clients were saved", {"do": "save"})
        return {name: sha256 for _, header, _ in self._answers() for name, sha256 in header["states"].items()}

    def restore(self, states: Mapping[str, str]) -> None:
        strays = dict(states)
        for worker in self._workers:
            own = {name: strays.pop(name) for name in states if owner(name) in worker.clients}
            if worker is self._workers[-1]:
                own |= strays  # states of unknown clients go to the last worker, which reports the error
            self._ask(worker, "while its clients were restored", {"do": "restore", "states": own})
        for _ in self._answers():
            pass

    def close(self) -> None:
        """Stop at once: busy workers are killed, which their atomic files tolerate."""
        for worker in self._workers:
            if worker.doing:
                worker.process.kill()
            worker.connection.close()
        for worker in self._workers:
            worker.process.join(PATIENCE)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
        self._workers = []

    def _assign(self, worker: Worker, assignment: Assignment) -> None:
        """Sent once the worker has loaded the plugins: it may hold objects of their classes."""
        try:
            message = ForkingPickler.dumps(assignment)
        except Exception as error:
            raise BadInput(f"the run cannot be sent to worker processes ({error}); {IMPORTABLE}") from error
        worker.doing = STARTING
        with suppress(ConnectionError):  # the worker died; its last message is read with the answers
            worker.connection.send_bytes(message)

    def _ask(self, worker: Worker, doing: str, header: dict[str, Any], tensors: Payload | None = None) -> None:
        worker.doing, worker.stopped = doing, False  # it has answered since it was last seen stopped
        try:
            worker.connection.send_bytes(pack(header, tensors))
        except ConnectionError:
            raise self._lost(worker) from None

    def _answers(self) -> Iterator[tuple[Worker, dict[str, Any], Payload]]:
        """Yields answers as they arrive, until every worker that was asked has answered."""
        while asked := {w.connection: w for w in self._workers if w.doing}:
            ready = wait(list(asked), LOOK)
            if time.monotonic() - self._looked >= LOOK:
                self._look(asked.values())
            for connection in ready:
                worker = asked[connection]  # type: ignore[index]
                try:
                    header, tensors = unpack(worker.connection.recv_bytes())
                except (EOFError, ConnectionError):
                    raise self._lost(worker) from None
                if "epoch" in header:
                    client, *epoch = header["epoch"]
                    if self._progress:
                        self._progress(self._infos[client], *epoch)
                    continue
                if "error" in header:
                    raise rebuild_error(header["error"], f"worker {worker.number} failed {worker.doing}")
                worker.doing = None
                yield worker, header, tensors

    def _look(self, workers: Collection[Worker]) -> None:
        """Report workers stopped by SIGSTOP or a debugger: otherwise the run would wait silently."""
        for worker in workers:
            stopped = is_stopped(worker.process.pid)
            if stopped and not worker.stopped and self._tell:
                self._tell(
                    f"worker {worker.number} (process {worker.process.pid}) was stopped by a signal {worker.doing} "
                    f"(continue it with kill -CONT {worker.process.pid}); waiting"
                )
            worker.stopped = stopped
        self._looked = time.monotonic()

    def _lost(self, worker: Worker) -> WorkerLost:
        worker.process.join(PATIENCE)
        code = worker.process.exitcode or 0
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        if worker.doing == STARTING:
            return WorkerLost(
                f"worker {worker.number} died ({how}) {STARTING}; a script that uses engine=pool needs "
                f'if __name__ == "__main__": around its top-level code'
            )
        return WorkerLost(
            f"worker {worker.number} died ({how}) {worker.doing}; the last checkpoint is intact, "
            f"continue with resume=True"
        )


def rebuild_error(found: Mapping[str, Any], where: str) -> Exception:
    """Rebuild a worker's exception: expected errors unchanged, bugs with the worker's traceback."""
    match found["kind"]:
        case "Damaged":
            return Damaged(found["text"])
        case "BadInput":
            return BadInput(found["text"])
        case "Diverged":
            return Diverged(found["text"])
        case "OSError":
            return OSError(found["errno"], found["strerror"] or found["text"], found["filename"])
    error = RuntimeError(f"{where}: {found['kind']}: {found['text']}")
    error.add_note(f"Traceback in the worker:\n{found['trace']}")
    return error
