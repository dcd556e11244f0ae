"""Base classes of methods whose server aggregates uploads: the rule and the client weights."""

from collections.abc import Sequence
from dataclasses import dataclass

from asfedbridge.core import aggregation
from asfedbridge.core.aggregation import Rule, Weights
from asfedbridge.core.errors import BadInput
from asfedbridge.core.method import Method
from asfedbridge.core.payload import Payload
from asfedbridge.core.task import ClientInfo, Task


@dataclass(frozen=True)
class Aggregating(Method):
    """Aggregation by ``mean`` or by a robust rule. Robust rules weigh all clients equally."""

    aggregation: Rule = "mean"  # rule for uploads: median, trimmed: per coordinate; krum, geometric: on whole uploads
    trim: float = 0.1  # fraction of clients assumed Byzantine; trimmed removes as many values at each end

    def check(self, task: Task, clients: Sequence[ClientInfo]) -> None:
        if self.trim >= 0.5:
            raise BadInput(f"method.trim={self.trim} is out of range; use less than 0.5, or method.aggregation=median")

    def combine(self, payloads: Sequence[Payload], weights: Sequence[float]) -> Payload:
        """Aggregate payloads by the rule. Only ``mean`` uses the weights."""
        return aggregation.aggregate(payloads, weights, self.aggregation, self.trim)


@dataclass(frozen=True)
class Weighing(Aggregating):
    """Aggregation with weights that may depend on the number of examples, which nodes report themselves."""

    weight_cap: float = 10.0  # `capped`: maximum size of a client, as a multiple of the median size

    def check(self, task: Task, clients: Sequence[ClientInfo]) -> None:
        super().check(task, clients)
        if not self.weight_cap >= 1:
            raise BadInput(f"method.weight_cap={self.weight_cap} is out of range; use 1 or more")

    def weigh(self, clients: Sequence[ClientInfo], how: Weights) -> dict[int, float]:
        """The weights of a round's clients, by id."""
        weights = aggregation.weigh([c.train_size for c in clients], how, self.weight_cap)
        return {c.id: weight for c, weight in zip(clients, weights, strict=True)}
