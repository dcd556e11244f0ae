"""One client's turn: receive, evaluate, train, evaluate. The same for every engine."""

import ctypes
import math
import time
import zlib
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asfedbridge.core import compression, ensemble, payload, seeds
from asfedbridge.core.client import Answers, Client, Predictor, Shard
from asfedbridge.core.errors import BadInput, Diverged
from asfedbridge.core.method import Method
from asfedbridge.core.payload import Payload
from asfedbridge.core.task import ClientInfo, Point, Round, Task, Upload
from asfedbridge.data.loader import Shard as Images
from asfedbridge.models.twin import as_twin
from asfedbridge.models.zoo import build_backbone

# Keys of a record in rounds.jsonl that a method's metrics must not use.
RESERVED = ("round", "client", "kind", "model", "width", "seconds", "uplink_bytes", "downlink_bytes", "event")

EVALUATION_BATCH = 256


def build_client(
    method: Method, task: Task, info: ClientInfo, shard: Shard, device: torch.device | str = "cpu"
) -> Client:
    """A client in its initial state."""
    if isinstance(shard, Images):
        shard = shard.resident(torch.device(device))
    client = Client(info, task, build_backbone(task, info), shard, device)
    method.client_init(client)
    return client


@torch.inference_mode()
def answer(client: Client, predict: Predictor, shard: Shard | None = None) -> Answers:
    """Logits and labels of the test images of ``shard``, by default the client's own."""
    for module in client.modules.values():
        module.eval()
    batches = (shard or client.shard).test_batches(EVALUATION_BATCH)
    with client.autocast():
        logits, labels = zip(*((predict(client.place(x)).float().cpu(), y) for x, y in batches), strict=True)
    return Answers(torch.cat(logits), torch.cat(labels))


def evaluate(client: Client, predict: Predictor) -> dict[str, float]:
    """Accuracy in percent and mean cross-entropy on the client's test shard."""
    return score(answer(client, predict))


def score(answers: Answers) -> dict[str, float]:
    logits, labels = answers
    right = int((logits.argmax(dim=1) == labels).sum())
    return {"accuracy": 100 * right / len(labels), "loss": F.cross_entropy(logits, labels).item()}


def evaluate_at(point: Point, method: Method, client: Client) -> dict[str, float]:
    """Evaluate the private backbone with its own head, the method's other predictors, and the two fused."""
    predictors: dict[str, Predictor] = {"backbone": lambda x: client.backbone(x).logits}
    predictors |= method.client_models(client)
    answers = {name: _answer_once(client, name, predict) for name, predict in predictors.items()}
    metrics: dict[str, float] = {}
    if (partner := method.fused_with) in answers:
        weight = ensemble.EQUAL
        if client.held_out is not None:
            own, other = (answer(client, predictors[name], client.held_out) for name in ("backbone", partner))
            weight = ensemble.fit_weight(own.logits, other.logits, own.labels)
        own, other = answers["backbone"], answers[partner]
        answers["fused"] = Answers(ensemble.mix(own.logits, other.logits, weight), own.labels)
        metrics[f"{point}.fused_weight"] = weight
    for name, found in answers.items():
        prefix = "" if name == "backbone" else f"{name}_"
        metrics |= {f"{point}.{prefix}{key}": v for key, v in score(found).items()}
    return metrics


def _answer_once(client: Client, name: str, predict: Predictor) -> Answers:
    """A module that has not changed since its last evaluation (`received` after `trained`) is not run again."""
    if name not in client.modules:
        return answer(client, predict)
    content = digest(client.layers(name))
    known = client.evaluated.get(name)
    if known is None or known[0] != content:
        known = client.evaluated[name] = (content, answer(client, predict))
    return known[1]


def digest(layers: Iterable[nn.Module]) -> int:
    """A checksum of all values: cheap compared with an evaluation, and it detects any change to a tensor."""
    total = 0
    for layer in layers:
        for tensors in (layer._parameters, layer._buffers):
            for tensor in tensors.values():
                if tensor is not None:
                    total = zlib.crc32(_memory(tensor), total)
    return total


def _memory(tensor: Tensor) -> Any:
    """A tensor's bytes, without a copy if it is contiguous and on the CPU."""
    whole = tensor.is_contiguous() or tensor.is_contiguous(memory_format=torch.channels_last)
    address = tensor.data_ptr()
    if not (whole and address and tensor.is_cpu):
        return tensor.detach().cpu().contiguous().numpy().data
    return (ctypes.c_char * tensor.nbytes).from_address(address)


def _checked(upload: Any, method: Method, whose: str) -> Upload:
    """Validate what ``client_round`` returned and convert its metrics to numbers."""
    if not isinstance(upload, Upload):
        raise BadInput(f"method '{method.name}': client_round returned {type(upload).__name__}, expected an Upload")
    metrics: dict[str, float] = {}
    reported: dict[str, Any] = upload.metrics
    for name, value in reported.items():
        number = isinstance(value, numpy.generic) or (isinstance(value, Tensor) and value.numel() == 1)
        known = value.item() if number else value
        if not isinstance(name, str) or name in RESERVED or name.startswith(("received.", "trained.")):
            raise BadInput(f"method '{method.name}': metric {name!r} is reserved; use another name")
        if isinstance(known, bool) or not isinstance(known, int | float):
            raise BadInput(f"method '{method.name}': metric '{name}' is {type(known).__name__}, expected a number")
        if not math.isfinite(known):
            raise Diverged(f"{whose}: metric '{name}' is {known}; lower the learning rate")
        metrics[name] = known
    return replace(upload, metrics=metrics)


def take_turn(method: Method, client: Client, down: Payload, rnd: Round) -> Upload:
    """One client's part in one round; the closing visit ends after ``received``. Payloads are in encoded form."""
    begin = time.perf_counter()
    whose = f"{client.info.label}, round {rnd.index}"
    codec, declared = client.task.compress, method.downloads(client.task, client.info)
    down = compression.decode(down, declared, codec, f"download to {whose}", method.partial)
    method.client_receive(client, payload.clone(down), rnd)
    judged = rnd.due(client.task.evaluate_every)
    received = evaluate_at("received", method, client) if judged else {}
    # A bad aggregate may have an infinite loss; that is a valid result, and local training may repair it.
    metrics = {name: v for name, v in received.items() if math.isfinite(v)}
    upload = Upload()
    sent: Payload = {}
    if not rnd.closing:
        # Our code never uses torch's global generator; a user's model may (dropout).
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seeds.seed(client.task.seed, "client", client.info.id, "round", rnd.index, "torch"))
            starting = client.info.kind == "snn" and rnd.index < client.task.twin_rounds
            with as_twin(client) if starting else nullcontext():
                upload = _checked(method.client_round(client, rnd), method, whose)
        payload.check(upload.payload, method.uploads(client.task, client.info), f"upload of {whose}", method.partial)
        trained = evaluate_at("trained", method, client) if judged else {}
        # Divergence in the last update of a round shows only here, as no further loss is computed.
        if bad := [name for name, value in trained.items() if not math.isfinite(value)]:
            raise Diverged(f"{whose}, evaluation: {bad[0]} is {trained[bad[0]]}; lower the learning rate")
        metrics |= trained
        start = down if method.continues else {}
        sent, client.residual = compression.shrink_upload(
            upload.payload, start, client.residual, codec, f"upload of {whose}"
        )
    seconds = time.perf_counter() - begin
    return Upload(payload.clone(sent), upload.metrics | metrics | {"seconds": seconds})
