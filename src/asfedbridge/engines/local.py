"""The plain engine: every client in this process, one after the other. What the others are compared with."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from asfedbridge.core.client import Shard
from asfedbridge.core.method import Method
from asfedbridge.core.payload import Payload
from asfedbridge.core.task import ClientInfo, Round, Task, Upload
from asfedbridge.engines.host import ClientHost, Progress, Reader


class LocalEngine:
    """``at_work`` bounds the clients in memory (0: all of them stay there); the others are in ``folder``."""

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
    ) -> None:
        self._infos = list(infos)
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
        )

    def describe(self) -> dict[str, Any]:
        return {"engine": "local", "workers": 1, "threads": torch.get_num_threads()}

    def clients(self) -> Sequence[ClientInfo]:
        return self._infos

    def train(self, rnd: Round, downs: Mapping[int, Payload]) -> dict[int, Upload]:
        return {i: self.host.turn(i, downs[i], rnd) for i in downs}

    def diagnose(self, clients: Iterable[int]) -> dict[int, Payload]:
        """Readings of these clients. Flower has no such method: features must not leave a node."""
        return {i: self.host.diagnose(i) for i in clients}

    def save(self) -> Mapping[str, str]:
        return self.host.save()

    def restore(self, states: Mapping[str, str]) -> None:
        self.host.restore(states)

    def close(self) -> None:
        pass

    def client_state(self, client: int) -> Payload:
        """For whoever looks into clients of the own process; no part of what engines have in common."""
        return self.host.state(client)
