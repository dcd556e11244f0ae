"""The reference engine: all clients in this process, one after the other. The other engines must give the same bits."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from asfedbridge.core.client import Shard
from asfedbridge.core.method import Method
from asfedbridge.core.payload import Payload
from asfedbridge.core.task import ClientInfo, Round, Task, Upload
from asfedbridge.engines.host import ClientHost, Keep, Progress, Reader, Turns


class LocalEngine:
    """``at_work`` limits the number of clients in memory (0: no limit); the others are in ``folder``."""

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
        reader: Reader | None = None,
        keep: Keep | None = None,
        turns: Turns | None = None,
    ) -> None:
        self._infos, self._turns = list(infos), turns
        self.host = ClientHost(
            method,
            task,
            infos,
            shards,
            device=device,
            progress=progress,
            capacity=at_work,
            folder=folder,
            reader=reader,
            keep=keep,
        )

    def describe(self) -> dict[str, Any]:
        return {"engine": "local", "workers": 1, "threads": torch.get_num_threads()}

    def clients(self) -> Sequence[ClientInfo]:
        return self._infos

    def train(self, rnd: Round, downs: Mapping[int, Payload]) -> dict[int, Upload]:
        return {i: self._turn(i, downs[i], rnd) for i in downs}

    def _turn(self, client: int, down: Payload, rnd: Round) -> Upload:
        self._note(client, ended=False)
        upload = self.host.turn(client, down, rnd)
        self._note(client, ended=True)
        return upload

    def _note(self, client: int, ended: bool) -> None:
        if self._turns:
            self._turns(self.host.infos[client], ended)

    def diagnose(self, clients: Iterable[int]) -> dict[int, Payload]:
        """Diagnostics of these clients. The Flower engine has no such method: features must not leave a node."""
        return {i: self.host.diagnose(i) for i in clients}

    def save(self) -> Mapping[str, str]:
        return self.host.save()

    def restore(self, states: Mapping[str, str]) -> None:
        self.host.restore(states)

    def close(self) -> None:
        pass

    def client_state(self, client: int) -> Payload:
        """A client of this process, for inspection; not part of the `Engine` interface."""
        return self.host.state(client)
