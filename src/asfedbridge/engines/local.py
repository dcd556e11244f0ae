"""The plain engine: every client in this process, one after the other. What the others are compared with."""

from collections.abc import Callable, Mapping, Sequence

import torch

from asfedbridge.core.payload import Payload
from asfedbridge.core.protocol import Client, ClientInfo, Method, Round, Shard, Task, Upload
from asfedbridge.engines.client import build_client, take_turn

Progress = Callable[[ClientInfo, str, int, int, dict[str, float]], None]  # client, stage, epoch, epochs, losses


class LocalEngine:
    def __init__(
        self,
        method: Method,
        task: Task,
        infos: Sequence[ClientInfo],
        shards: Sequence[Shard],
        device: torch.device | str = "cpu",
        progress: Progress | None = None,
    ) -> None:
        self.method = method
        self._clients: dict[int, Client] = {}
        for info, shard in zip(infos, shards, strict=True):
            client = build_client(method, task, info, shard, device)
            if progress:
                client.watch = _bind(progress, info)
            self._clients[info.id] = client

    def clients(self) -> Sequence[ClientInfo]:
        return [client.info for client in self._clients.values()]

    def train(self, rnd: Round, downs: Mapping[int, Payload]) -> dict[int, Upload]:
        return {i: take_turn(self.method, self._clients[i], down, rnd) for i, down in downs.items()}

    def client_state(self, client: int) -> Payload:
        return self._clients[client].state_dict()

    def load_client_state(self, client: int, state: Payload) -> None:
        self._clients[client].load_state_dict(state)


def _bind(progress: Progress, info: ClientInfo) -> Callable[[str, int, int, dict[str, float]], None]:
    return lambda stage, epoch, epochs, losses: progress(info, stage, epoch, epochs, losses)
