"""One client's turn: receive, be evaluated, train, be evaluated. The same for every engine."""

import ctypes
import math
import time
import zlib
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asfedbridge.core import compression, payload, seeds
from asfedbridge.core.errors import Diverged
from asfedbridge.core.payload import Payload
from asfedbridge.core.protocol import Client, ClientInfo, Method, Point, Round, Shard, Task, Upload
from asfedbridge.models.zoo import build_backbone

EVALUATION_BATCH = 256


def build_client(
    method: Method, task: Task, info: ClientInfo, shard: Shard, device: torch.device | str = "cpu"
) -> Client:
    """A client as it is before round 0."""
    client = Client(info, task, build_backbone(task, info), shard, device)
    method.client_init(client)
    return client


@torch.inference_mode()
def evaluate(client: Client, predict: Callable[[Tensor], Tensor]) -> dict[str, float]:
    """Accuracy in percent and mean cross-entropy on the client's test shard."""
    for module in client.modules.values():
        module.eval()
    right, loss, count = 0, 0.0, 0
    for x, y in client.shard.test_batches(EVALUATION_BATCH):
        logits = predict(client.place(x)).cpu()
        right += int((logits.argmax(dim=1) == y).sum())
        loss += F.cross_entropy(logits, y, reduction="sum").item()
        count += len(y)
    return {"accuracy": 100 * right / count, "loss": loss / count}


def evaluate_at(point: Point, method: Method, client: Client) -> dict[str, float]:
    """The private backbone with its own head, always; then what the method has beside it."""
    predictors: dict[str, Callable[[Tensor], Tensor]] = {"backbone": lambda x: client.backbone(x).logits}
    predictors |= method.client_models(client)
    metrics: dict[str, float] = {}
    for name, predict in predictors.items():
        prefix = "" if name == "backbone" else f"{name}_"
        metrics |= {f"{point}.{prefix}{key}": v for key, v in _evaluate_once(client, name, predict).items()}
    return metrics


def _evaluate_once(client: Client, name: str, predict: Callable[[Tensor], Tensor]) -> dict[str, float]:
    """A module that has not changed since its last evaluation (`received` after `trained`) is not run again."""
    module = client.modules.get(name)
    if module is None:
        return evaluate(client, predict)
    content = digest(client.layers(name))
    known = client.evaluated.get(name)
    if known is None or known[0] != content:
        known = client.evaluated[name] = (content, evaluate(client, predict))
    return known[1]


def digest(layers: Iterable[nn.Module]) -> int:
    """A checksum of all values: cheap beside an evaluation, and it sees every way of changing a tensor."""
    total = 0
    for layer in layers:
        for tensors in (layer._parameters, layer._buffers):
            for tensor in tensors.values():
                if tensor is not None:
                    total = zlib.crc32(_memory(tensor), total)
    return total


def _memory(tensor: Tensor) -> Any:
    """A tensor's bytes as they lie there, if they are whole and near."""
    whole = tensor.is_contiguous() or tensor.is_contiguous(memory_format=torch.channels_last)
    address = tensor.data_ptr()
    if not (whole and address and tensor.is_cpu):
        return tensor.detach().cpu().contiguous().numpy().data
    return (ctypes.c_char * tensor.nbytes).from_address(address)


def take_turn(method: Method, client: Client, down: Payload, rnd: Round) -> Upload:
    """What one client does in one round; the closing visit ends after ``received``. Payloads are as on the wire."""
    begin = time.perf_counter()
    whose = f"{client.info.label}, round {rnd.index}"
    codec, declared = client.task.compress, method.downloads(client.task, client.info)
    down = compression.decode(down, declared, codec, f"download to {whose}", method.partial)
    method.client_receive(client, payload.clone(down), rnd)
    judged = rnd.due(client.task.evaluate_every)
    received = evaluate_at("received", method, client) if judged else {}
    # An aggregate may be so bad that its loss overflows; that is a result, and local training may mend it.
    metrics = {name: v for name, v in received.items() if math.isfinite(v)}
    upload = Upload()
    sent: Payload = {}
    if not rnd.closing:
        # Nothing of ours draws from torch's own generator; a user's model may (dropout).
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seeds.seed(client.task.seed, "client", client.info.id, "round", rnd.index, "torch"))
            upload = method.client_round(client, rnd)
        payload.check(upload.payload, method.uploads(client.task, client.info), f"upload of {whose}", method.partial)
        trained = evaluate_at("trained", method, client) if judged else {}
        # The last update of a round has no loss after it that would show it went wrong.
        if bad := [name for name, value in trained.items() if not math.isfinite(value)]:
            raise Diverged(f"{whose}, evaluation: {bad[0]} is {trained[bad[0]]}; lower the learning rate")
        metrics |= trained
        start = down if method.continues else {}
        sent, client.residual = compression.shrink_upload(
            upload.payload, start, client.residual, codec, f"upload of {whose}"
        )
    seconds = time.perf_counter() - begin
    return Upload(payload.clone(sent), upload.metrics | metrics | {"seconds": seconds})
