"""What methods that average networks have in common on the server: which mean, bounded updates, and private noise."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from asfedbridge.core import aggregation, privacy
from asfedbridge.core.aggregation import Rule
from asfedbridge.core.errors import BadInput
from asfedbridge.core.method import Method
from asfedbridge.core.payload import Payload
from asfedbridge.core.task import ClientInfo, Round, Task, Upload

SEED = "seed"  # of the run, in the state of a server that draws from it


@dataclass(frozen=True)
class Averaging(Method):
    """Everything off by default. An update is an upload minus what the server had sent."""

    continues: ClassVar[bool] = True
    aggregation: Rule = "mean"
    trim: float = 0.1  # trimmed: share of the clients that is left out at each end
    clip_update: float = 0.0  # largest L2 norm of a client's update; 0: any
    noise: float = 0.0  # deviation of the noise on the sum of updates, in units of clip_update; 0: none
    noise_source: privacy.Source = "system"  # seed: repeatable, for tests; protects from nobody who knows the seed
    delta: float = 1e-5  # of the epsilon that the summary tells
    later: ClassVar[Mapping[str, Any]] = {
        "aggregation": "mean",
        "trim": 0.1,
        "clip_update": 0.0,
        "noise": 0.0,
        "noise_source": "system",
        "delta": 1e-5,
    }

    @property
    def mechanism(self) -> privacy.Mechanism | None:
        if not self.noise:
            return None
        return privacy.Mechanism(self.noise, self.clip_update, self.noise_source, self.delta)

    def check(self, task: Task, clients: Sequence[ClientInfo]) -> None:
        if self.trim >= 0.5:
            raise BadInput(f"method.trim={self.trim} leaves nobody; use less than 0.5, or method.aggregation=median")
        if not self.noise:
            return
        if not self.clip_update:
            raise BadInput(f"method.noise={self.noise} hides updates of bounded norm only; set method.clip_update")
        if self.aggregation != "mean":
            raise BadInput(
                f"method.noise={self.noise} is for a mean, not method.aggregation={self.aggregation}; set one back"
            )
        if not 0 < self.delta < 1:
            raise BadInput(f"method.delta={self.delta} is out of range; use more than 0, less than 1")
        if self.bn_buffers == "averaged":
            raise BadInput(
                f"method.noise={self.noise} with method.bn_buffers=averaged could make a variance negative; use local"
            )
        if stepping := [c for c in clients if c.kind == "qnn"]:
            raise BadInput(
                f"method.noise={self.noise}: step sizes of {stepping[0].label} do not bear noise; use other kinds"
            )

    def notes(self, task: Task) -> list[str]:
        if not self.noise:
            return []
        noted = [f"{self.name}: clients count equally in a private mean, whatever their shard size"]
        if self.noise_source == "seed":
            noted.append(f"{self.name}: noise comes from the run's seed and protects from nobody who knows it")
        return noted

    def remembered(self, task: Task) -> Payload:
        """What a server's state holds beside the tensors that are averaged."""
        return {SEED: torch.tensor(task.seed)} if self.noise and self.noise_source == "seed" else {}

    def bounded(
        self, state: Payload, clients: Sequence[ClientInfo], ups: Mapping[int, Upload], rnd: Round
    ) -> dict[int, Payload]:
        """What clients sent, in id order, with the whole of each update clipped."""
        sent = {c.id: ups[c.id].payload for c in clients}
        if not self.clip_update:
            return sent
        before = {c.id: self.server_send(state, c, rnd) for c in clients}
        return {i: aggregation.clip_update(up, before[i], self.clip_update) for i, up in sent.items()}

    def average(
        self, state: Payload, payloads: Sequence[Payload], weights: Sequence[float], rnd: Round, whose: str = "all"
    ) -> Payload:
        """One payload of many. A private mean counts all alike: the share of one in it must be known."""
        if not self.noise:
            return aggregation.aggregate(payloads, weights, self.aggregation, self.trim)
        mean = aggregation.aggregate(payloads, [1] * len(payloads))
        normal: privacy.Normal = privacy.system_normal
        if self.noise_source == "seed":
            normal = privacy.seeded_normal(int(state[SEED]), rnd.index, whose)
        return privacy.add_noise(mean, self.noise * self.clip_update / len(payloads), normal)
