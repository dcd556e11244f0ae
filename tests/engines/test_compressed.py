"""Rounds whose payloads are rounded: what the server's state, the records and the errors say."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch

from asfedbridge.core import compression, payload
from asfedbridge.core.client import Client
from asfedbridge.core.compression import Codec
from asfedbridge.core.errors import Diverged, GuardError
from asfedbridge.core.payload import Payload
from asfedbridge.core.task import Round, Upload
from asfedbridge.engines.local import LocalEngine
from asfedbridge.engines.loop import federate, play_round
from asfedbridge.methods.fedavg import FedAvg
from asfedbridge.runs.records import make_records, summarise

FIRST = Round(0, 2)
CODECS: list[Codec] = ["fp16", "int8"]


@dataclass(frozen=True)
class Idle(FedAvg):
    """A client adds ``step`` to what it was sent and sends it back."""

    step: float = 0.0
    classifier_only: ClassVar[str] = "classifier.bias"

    def client_round(self, client: Client, rnd: Round) -> Upload:
        up = payload.select(client.backbone)
        up[self.classifier_only] += self.step
        return Upload(up)


def start(pair: Any, method: FedAvg, codec: Codec) -> tuple[Any, LocalEngine, Payload]:
    task = replace(pair.task, compress=codec)
    engine = LocalEngine(method, task, pair.clients, pair.shards)
    return task, engine, method.server_init(task, pair.clients)


@pytest.mark.parametrize("codec", CODECS)
def test_rounding_a_download_moves_nothing(pair: Any, codec: Codec) -> None:
    """Clients that learn nothing leave the server's state as it is, to the bit, although they never saw it exactly."""
    method = Idle()
    task, engine, state = start(pair, method, codec)
    new, _, _ = play_round(method, task, engine, state, FIRST, pair.clients)
    assert all(torch.equal(new[name], state[name]) for name in state)
    heard = payload.select(engine.host.client(0).backbone)
    assert any(not torch.equal(heard[name.removeprefix("all/")], t) for name, t in state.items())


@pytest.mark.parametrize("codec", CODECS)
def test_what_clients_learn_arrives(pair: Any, codec: Codec) -> None:
    method = Idle(step=0.25)
    task, engine, state = start(pair, method, codec)
    new, _, _ = play_round(method, task, engine, state, FIRST, pair.clients)
    away = {name: (new[name] - t).abs().max().item() for name, t in state.items()}
    assert away.pop("all/classifier.bias") == pytest.approx(0.25)
    assert max(away.values()) == 0


@pytest.mark.parametrize("codec", CODECS)
def test_bytes_are_those_of_the_encoded_tensors(pair: Any, codec: Codec) -> None:
    method = Idle()
    task, engine, _ = start(pair, method, codec)
    records: list[Any] = []
    federate(method, task, engine, lambda rnd, who, sent, ups, _: records.extend(make_records(rnd, who, sent, ups)))
    size = compression.encoded_bytes(method.uploads(task, pair.clients[0]), codec)
    assert {r["downlink_bytes"] for r in records} == {size}
    assert {r["uplink_bytes"] for r in records if r["round"] < 2} == {size}
    assert {r["uplink_bytes"] for r in records if r["round"] == 2} == {0}
    assert summarise(method, pair.clients, records, {})["uplink_bytes"] == 4 * size


def test_an_upload_beyond_fp16_names_client_and_tensor(pair: Any) -> None:
    method = Idle(step=1e5)
    task, engine, state = start(pair, method, "fp16")
    with pytest.raises(
        Diverged, match=r"^upload of client 0 .*, round 0: 'classifier\.bias' reaches 1e\+05, .*65504"
    ) as e:
        play_round(method, task, engine, state, FIRST, pair.clients)
    assert "\n" not in str(e.value)


def test_a_state_beyond_fp16_is_not_sent(pair: Any) -> None:
    task, engine, state = start(pair, Idle(), "fp16")
    state["all/classifier.bias"] += 1e6
    with pytest.raises(Diverged, match=r"^download to client 0 .*, round 0: 'classifier\.bias' reaches 1e\+06"):
        play_round(Idle(), task, engine, state, FIRST, pair.clients)


def test_the_server_does_not_trust_an_encoded_upload(pair: Any) -> None:
    method = Idle()
    task, engine, state = start(pair, method, "int8")

    class Hostile(LocalEngine):
        def train(self, rnd: Round, downs: Any) -> dict[int, Upload]:
            ups = engine.train(rnd, downs)
            ups[1].payload[compression.SCALES][0] = torch.inf
            return ups

    hostile = Hostile(method, task, pair.clients, pair.shards)
    with pytest.raises(Diverged, match=r"^upload of client 1 .*, round 0: a scale is negative, NaN or infinite$"):
        play_round(method, task, hostile, state, FIRST, pair.clients)


def test_a_plain_payload_is_not_an_encoded_one(pair: Any) -> None:
    _, engine, state = start(pair, Idle(), "int8")
    with pytest.raises(GuardError, match=r"is torch\.float32, compress=int8 sends torch\.int8$"):
        engine.train(FIRST, {0: Idle().server_send(state, pair.clients[0], FIRST)})
