"""The private side of a client: models, optimiser state and data."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from asfedbridge.core import seeds
from asfedbridge.core.payload import Payload, clone
from asfedbridge.core.task import HALF, ClientInfo, Round, ShortBatch, Task

Predictor = Callable[[Tensor], Tensor]  # a batch of images -> logits_BC


class Answers(NamedTuple):
    """A predictor's logits for a set of images, and the labels."""

    logits: Tensor
    labels: Tensor


class Shard(Protocol):
    """The interface to one client's data that methods use."""

    @property
    def train_size(self) -> int: ...
    def batches(
        self, batch_size: int, generator: torch.Generator, short_batch: ShortBatch = "merge"
    ) -> Iterator[tuple[Tensor, Tensor]]: ...
    def train_batches_plain(self, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]: ...
    def test_batches(self, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]: ...
    def hold_out(self, share: float, generator: torch.Generator) -> "tuple[Shard, Shard]":
        """Split off a random ``share`` of the training examples: the remaining shard, and one that tests on them."""
        ...


Watch = Callable[[str, int, int, dict[str, float]], None]  # stage, epoch, epochs, losses


class Client:
    """The private side: models, optimiser state, compression residual and data.

    Only ``state_dict()`` persists between rounds.
    """

    def __init__(
        self, info: ClientInfo, task: Task, backbone: nn.Module, shard: Shard, device: torch.device | str = "cpu"
    ) -> None:
        self.info = info
        self.task = task
        self.shard = shard
        self.held_out: Shard | None = None  # training images excluded from training
        self.device = torch.device(device)
        self.modules: dict[str, nn.Module] = {}
        # By module, for tensors that have been trained: SGD momentum or AdamW's first moments. AdamW's second moments
        # and step counts are ignored without a first moment, so deleting an entry of ``momentum`` resets the optimiser.
        self.momentum: dict[str, Payload] = {}
        self.second_moment: dict[str, Payload] = {}
        self.steps: dict[str, Payload] = {}
        self.residual: Payload = {}  # rounding error of compressed uploads: added to the next upload
        self.watch: Watch | None = None
        self.evaluated: dict[str, tuple[int, Answers]] = {}  # a cache of the engine, not part of the state
        self._layers: dict[str, list[nn.Module]] = {}
        self.add("backbone", backbone)

    @property
    def backbone(self) -> nn.Module:
        return self.modules["backbone"]

    def add(self, name: str, module: nn.Module) -> None:
        self.modules[name] = module.to(self.device)
        self._layers.pop(name, None)

    def layers(self, name: str) -> list[nn.Module]:
        """A module and all its submodules, cached because walking a deep network is slow."""
        if name not in self._layers:
            self._layers[name] = list(self.modules[name].modules())
        return self._layers[name]

    def generator(self, rnd: Round, stage: str) -> torch.Generator:
        return seeds.generator(self.task.seed, "client", self.info.id, "round", rnd.index, stage)

    def hold_out(self, share: float) -> None:
        """Exclude a share of the images from training. The choice depends only on the run's seed and the client id."""
        generator = seeds.generator(self.task.seed, "client", self.info.id, "held out")
        self.shard, self.held_out = self.shard.hold_out(share, generator)

    def batches(self, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        """One shuffled, augmented epoch on the client's device."""
        for x, y in self.shard.batches(self.task.batch_size, generator, self.task.short_batch):
            yield self.place(x), y.to(self.device)

    def place(self, x_BCHW: Tensor) -> Tensor:
        """Move a batch to the client's device, in the channels-last format of the models."""
        return x_BCHW.to(self.device).contiguous(memory_format=torch.channels_last)

    def autocast(self) -> AbstractContextManager[object]:
        """Forward passes and losses inside use the task's precision. Weights, gradients and payloads stay float32."""
        dtype = HALF.get(self.task.precision)
        if dtype is None:
            return nullcontext()
        # In older versions of torch, weights that a teacher's pass cast without gradients are reused from the cache in
        # passes that need gradients (pytorch#158232).
        return torch.autocast(self.device.type, dtype, cache_enabled=False)

    def state_dict(self) -> Payload:
        """The whole private state as a flat dictionary of copies on the CPU."""
        return clone(self.tensors())

    def tensors(self) -> Payload:
        """The whole private state without copies: it changes when the client trains."""
        state: Payload = {}
        for name, module in self.modules.items():
            state |= {f"module/{name}/{key}": t for key, t in module.state_dict().items()}
        for name, buffers in self.momentum.items():
            state |= {f"momentum/{name}/{key}": t for key, t in buffers.items()}
            for part, beside in (("second_moment", self.second_moment), ("steps", self.steps)):
                state |= {f"{part}/{name}/{key}": t for key, t in beside.get(name, {}).items() if key in buffers}
        state |= {f"residual/upload/{key}": t for key, t in self.residual.items()}
        return state

    def load_state_dict(self, state: Payload) -> None:
        self.momentum, self.second_moment, self.steps, self.residual = {}, {}, {}, {}
        modules: dict[str, Payload] = {name: {} for name in self.modules}
        for key, tensor in state.items():
            part, name, rest = key.split("/", 2)
            if part == "module":
                modules[name][rest] = tensor
            elif part == "residual":
                self.residual[rest] = tensor.clone()
            elif part == "steps":
                self.steps.setdefault(name, {})[rest] = tensor.clone()  # torch requires step counts on the CPU
            else:
                buffers = self.second_moment if part == "second_moment" else self.momentum
                buffers.setdefault(name, {})[rest] = tensor.to(self.device, copy=True)
        for name, tensors in modules.items():
            self.modules[name].load_state_dict(tensors)
