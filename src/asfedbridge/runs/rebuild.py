"""Rebuilds the clients of a run from a checkpoint or snapshot and measures them one by one.

They are measured at a point: ``trained``, as the checkpoint holds them, or ``received``, after receiving the aggregate
that the server had then.
"""

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from asfedbridge.analysis.diagnostics import read_features
from asfedbridge.analysis.gradients import Cosines, cosines, probe_gradient
from asfedbridge.analysis.rates import rate_histograms
from asfedbridge.core import compression, payload
from asfedbridge.core.client import Client
from asfedbridge.core.method import Method
from asfedbridge.core.payload import Payload
from asfedbridge.core.task import ClientInfo, Point, Round
from asfedbridge.data.loader import Shard
from asfedbridge.engines import files
from asfedbridge.engines.checkpoint import Checkpoint
from asfedbridge.engines.host import ClientHost
from asfedbridge.engines.loop import Downloads
from asfedbridge.engines.turn import evaluate
from asfedbridge.models.bridge import Bridge
from asfedbridge.runs.setting import Setting, pick_device
from asfedbridge.runs.spec import Spec

Tell = Callable[[str], None]
Table = dict[str, Any]


class Spool(Sequence[Payload]):
    """Payloads stored as files and read on access: the gradients of a fleet are as large as its networks."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written: list[tuple[Path, str]] = []

    def add(self, tensors: Payload) -> None:
        path = self._folder / f"{len(self._written)}.safetensors"
        self._written.append((path, files.write_tensors(path, tensors, flush=False)))

    def __getitem__(self, place: Any) -> Any:
        return files.read_tensors(*self._written[place])

    def __len__(self) -> int:
        return len(self._written)


@dataclass(frozen=True)
class Measurements:
    """Measurements of the clients of a run after one round."""

    next_round: int
    features: list[Tensor]
    gradients: Cosines
    accuracy: list[float]  # of each client on its own test images
    rates: list[Table]


def measure_clients(
    clients: Iterable[Client], next_round: int, probe: Shard, method: Method, tell: Tell, where: Path
) -> Measurements:
    """Measures clients one by one, as ``rebuild`` returns them; progress messages name the checkpoint ``where``."""
    features, accuracy, rates = [], [], []
    with tempfile.TemporaryDirectory(prefix="asfedbridge-") as place:
        gradients = Spool(Path(place))
        for client in clients:
            tell(f"{where}: {client.info.label}")
            features.append(read_features(client, probe))
            gradients.add(probe_gradient(client, probe))
            accuracy.append(_accuracy(client))
            if client.info.kind == "snn":
                rates.append(_rates(client, method))
        return Measurements(next_round, features, cosines(gradients), accuracy, rates)


def rebuild(
    spec: Spec,
    setting: Setting,
    clients: Sequence[ClientInfo],
    found: Checkpoint,
    states: Path,
    point: Point,
    closing: bool = False,
) -> Iterator[Client]:
    """The clients of a checkpoint, one in memory at a time. The run folder is not modified.

    ``closing``: the run ended with this checkpoint, possibly before its last round.
    """
    device = pick_device(spec.device if spec.device == "cpu" else "auto")  # the run's GPU may not exist here
    host = ClientHost(
        spec.method, setting.task, setting.clients, setting.shards, device=device, capacity=1, folder=states
    )
    host.restore(found.states)
    rnd = Round(found.next_round, found.next_round if closing else spec.rounds)
    for info in clients:
        client = host.client(info.id)
        if point == "received":
            codec, declared = setting.task.compress, spec.method.downloads(setting.task, info)
            sent = Downloads(spec.method, found.server, rnd, [info], codec)[info.id]
            down = compression.decode(sent, declared, codec, f"download to {info.label}", spec.method.partial)
            spec.method.client_receive(client, payload.clone(down), rnd)
        yield client


def _accuracy(client: Client) -> float:
    return evaluate(client, lambda x: client.backbone(x).logits)["accuracy"]


def _rates(client: Client, method: Method) -> Table:
    bridge = client.modules.get(method.rate_ports)
    steps = client.info.T
    return {
        "client": client.info.id,
        "T": steps,
        "images": client.info.test_size,
        "levels": [*(k / steps for k in range(steps + 1)), None],
        **rate_histograms(client, bridge if isinstance(bridge, Bridge) else None),
    }
