"""Base class of methods that share a Bridge-like network: what is exchanged and how it is averaged."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

from torch import nn

from asfedbridge.core import payload
from asfedbridge.core.client import Client
from asfedbridge.core.errors import BadInput
from asfedbridge.core.method import Column, Method
from asfedbridge.core.payload import Payload, Shapes
from asfedbridge.core.task import ClientInfo, Round, Task, Upload
from asfedbridge.core.training import Step
from asfedbridge.methods.averaging import SEED, Averaging
from asfedbridge.models.bridge import Bridge
from asfedbridge.models.zoo import bridge_of, build_bridge, check_bridge, outline_bridge

LOG_SCALE = "log_scale"  # parameter of a port
MAX_LOG_SCALE = 30.0  # a port's scale is exp(log_scale), which must not overflow


@dataclass(frozen=True)
class BridgeSharing(Averaging):
    """The body is exchanged in both directions, and so is the head unless it is personal."""

    module: ClassVar[str]  # name of the network in ``Client.modules``
    # Short runs use a smaller network and a higher learning rate.
    recipes: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "short": {"bridge_lr": 0.05, "bridge_width": 0.25},
        "extended": {"fused_holdout": 0.1},
    }
    personal_head: bool = True  # False: the head is exchanged and averaged with the body
    bn_buffers: Literal["local", "averaged"] = "local"  # running statistics of BatchNorm: private, or averaged
    bridge_norm: Literal["batch", "group"] = "batch"  # normalisation layers of the shared network
    bridge_momentum: Literal["keep", "reset"] = "keep"  # momentum of the shared network between rounds
    bridge_lr: float = 0.004  # initial learning rate of the shared network
    bridge_weight_decay: float = 1e-4  # weight decay of the shared network
    bridge_width: float = 1.0  # channel multiplier of the shared network
    fused_holdout: float = 0.0  # fraction of training images held out to fit the weights of `fused`; 0: equal weights

    def check(self, task: Task, clients: Sequence[ClientInfo]) -> None:
        super().check(task, clients)
        if self.fused_holdout >= 1:
            raise BadInput(f"method.fused_holdout={self.fused_holdout} leaves nothing to train on; use less than 1")
        check_bridge(self.bridge_width)

    @classmethod
    def columns(cls) -> tuple[Column, ...]:
        return (
            Column("bridge", cls.fused_with, "Bridge", "Bridge", compared=False),
            Column("fused", "fused", "fused", "backbone and Bridge fused", by_kind=True),
        )

    def shared_network(self, task: Task) -> Bridge:
        return outline_bridge(task, self.bridge_width, self.bridge_norm)

    def sized_like(self, other: Method) -> Self:
        if not isinstance(other, BridgeSharing):
            return self
        return replace(self, bridge_width=other.bridge_width, bridge_norm=other.bridge_norm)

    @property
    def travels_with_buffers(self) -> bool:
        return self.bn_buffers == "averaged"

    def shared(self, network: Bridge) -> nn.Module:
        return network.body if self.personal_head else network

    def network(self, client: Client) -> Bridge:
        return bridge_of(client, self.module)

    def step(self, rnd: Round) -> Step:
        """Optimiser settings of the shared network."""
        return Step(rnd.cosine(self.bridge_lr), self.bridge_weight_decay)

    def downloads(self, task: Task, client: ClientInfo) -> Shapes:
        return payload.shapes(self.shared(self.shared_network(task)), self.travels_with_buffers)

    def uploads(self, task: Task, client: ClientInfo) -> Shapes:
        return self.downloads(task, client)

    def check_upload(self, task: Task, client: ClientInfo, up: Payload, rnd: Round) -> None:
        super().check_upload(task, client, up, rnd)
        payload.check_range(up, LOG_SCALE, -MAX_LOG_SCALE, MAX_LOG_SCALE)

    def client_init(self, client: Client) -> None:
        client.add(self.module, build_bridge(client.task, self.bridge_width, self.bridge_norm))
        if self.fused_holdout and client.shard.train_size > 1:
            client.hold_out(self.fused_holdout)

    def client_receive(self, client: Client, down: Payload, rnd: Round) -> None:
        payload.load(self.shared(self.network(client)), down)
        if self.bridge_momentum == "reset":
            client.momentum.pop(self.module, None)

    def pack(self, client: Client) -> Payload:
        """The upload."""
        return payload.select(self.shared(self.network(client)), self.travels_with_buffers)

    def server_init(self, task: Task, clients: Sequence[ClientInfo]) -> Payload:
        network = build_bridge(task, self.bridge_width, self.bridge_norm)
        return self.remembered(task) | payload.select(self.shared(network), self.travels_with_buffers)

    def server_send(self, state: Payload, client: ClientInfo, rnd: Round) -> Payload:
        return {name: t for name, t in state.items() if name != SEED}

    def server_round(
        self, state: Payload, clients: Sequence[ClientInfo], ups: Mapping[int, Upload], rnd: Round
    ) -> Payload:
        sent = {i: up for i, up in self.bounded(state, clients, ups, rnd).items() if up}
        if not sent:
            return state
        weights = self.weigh([c for c in clients if c.id in sent], self.weights)
        return state | self.average(state, list(sent.values()), list(weights.values()), rnd)
