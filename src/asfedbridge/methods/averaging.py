"""Base class of methods that average networks: weights, clipped updates and differential privacy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from asfedbridge.core import aggregation, privacy
from asfedbridge.core.aggregation import Weights
from asfedbridge.core.errors import BadInput
from asfedbridge.core.payload import Payload
from asfedbridge.core.task import ClientInfo, Round, Task, Upload
from asfedbridge.methods.aggregating import Weighing

SEED = "seed"  # key of the run's seed in the server state


@dataclass(frozen=True)
class Averaging(Weighing):
    """By default only the cap is active. An update is an upload minus the download."""

    continues: ClassVar[bool] = True
    weights: Weights = "capped"  # client weights in a mean: equal, by shard size, or by size up to weight_cap
    clip_update: float = 0.0  # maximum L2 norm of a client's update; 0: no limit
    noise: float = 0.0  # standard deviation of noise on the sum of updates, in units of clip_update; 0: none
    noise_source: privacy.Source = "system"  # seed: reproducible, but no protection if the seed is known
    delta: float = 1e-5  # delta of differential privacy, for the epsilon in the summary

    @property
    def mechanism(self) -> privacy.Mechanism | None:
        if not self.noise:
            return None
        return privacy.Mechanism(self.noise, self.clip_update, self.noise_source, self.delta)

    def check(self, task: Task, clients: Sequence[ClientInfo]) -> None:
        super().check(task, clients)
        if not self.noise:
            return
        if not self.clip_update:
            raise BadInput(f"method.noise={self.noise} needs clipped updates; set method.clip_update above 0")
        if self.aggregation != "mean":
            raise BadInput(
                f"method.noise={self.noise} does not support method.aggregation={self.aggregation}; use mean"
            )
        if not 0 < self.delta < 1:
            raise BadInput(f"method.delta={self.delta} is out of range; use more than 0, less than 1")
        if self.bn_buffers == "averaged":
            raise BadInput(
                f"method.noise={self.noise} with method.bn_buffers=averaged could make variances negative; use local"
            )
        if stepping := [c for c in clients if c.kind == "qnn"]:
            raise BadInput(
                f"method.noise={self.noise}: step sizes of {stepping[0].label} do not tolerate noise; use other kinds"
            )

    def notes(self, task: Task) -> list[str]:
        if not self.noise:
            return []
        noted = [f"{self.name}: all clients have equal weight in a private mean, regardless of shard size"]
        if self.noise_source == "seed":
            noted.append(f"{self.name}: noise comes from the run's seed: no protection if the seed is known")
        return noted

    def remembered(self, task: Task) -> Payload:
        """Entries of the server state that are not averaged."""
        return {SEED: torch.tensor(task.seed)} if self.noise and self.noise_source == "seed" else {}

    def bounded(
        self, state: Payload, clients: Sequence[ClientInfo], ups: Mapping[int, Upload], rnd: Round
    ) -> dict[int, Payload]:
        """The uploads by client id, with each update clipped over all its tensors."""
        sent = {c.id: ups[c.id].payload for c in clients}
        if not self.clip_update:
            return sent
        before = {c.id: self.server_send(state, c, rnd) for c in clients}
        return {i: aggregation.clip_update(up, before[i], self.clip_update) for i, up in sent.items()}

    def average(
        self, state: Payload, payloads: Sequence[Payload], weights: Sequence[float], rnd: Round, whose: str = "all"
    ) -> Payload:
        """Aggregate payloads. A private mean uses equal weights, because epsilon depends on the share of one client."""
        if not self.noise:
            return self.combine(payloads, weights)
        mean = aggregation.aggregate(payloads, [1] * len(payloads))
        normal: privacy.Normal = privacy.system_normal
        if self.noise_source == "seed":
            normal = privacy.seeded_normal(int(state[SEED]), rnd.index, whose)
        return privacy.add_noise(mean, self.noise * self.clip_update / len(payloads), normal)
