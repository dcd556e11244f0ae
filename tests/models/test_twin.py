"""Twin start: an SNN client trains its tensors as an ANN client in the first rounds."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from asfedbridge.core.client import Client
from asfedbridge.core.errors import BadInput
from asfedbridge.core.task import ClientInfo, Round, Task
from asfedbridge.data.loader import Shard
from asfedbridge.engines.turn import build_client, take_turn
from asfedbridge.methods.as_fedbridge import ASFedBridge
from asfedbridge.methods.standalone import Standalone
from asfedbridge.models.neuron import Spiking
from asfedbridge.models.twin import as_twin
from asfedbridge.models.zoo import check_backbone

TASK = Task(classes=4, channels=1, image_size=8, rounds=4, epochs=1, batch_size=8, feature_dim=8, twin_rounds=2)


def client_of(kind: Any, model: str = "vgg9", method: Any = None, task: Task = TASK) -> Client:
    info = ClientInfo(0, kind, model, 0.125, 2 if kind == "snn" else 1, 16, 4)
    x = torch.randint(0, 256, (20, 1, 8, 8), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    y = torch.arange(20) % 4
    return build_client(method or Standalone(), task, info, Shard(x[4:], y[4:], x[:4], y[:4], [0.5], [0.25], "none"))


@pytest.mark.parametrize("model", ["vgg9", "resnet18", "resnet18-sew", "resnet18-ms", "mobilenet"])
def test_twin_matches_an_ann_with_the_same_tensors(model: str) -> None:
    spiking, ann = client_of("snn", model), client_of("ann", model)
    ann.backbone.load_state_dict(spiking.backbone.state_dict())
    x = torch.randn(3, 1, 8, 8)
    spiking.backbone.eval(), ann.backbone.eval()
    before = spiking.backbone(x).logits_TBC
    with as_twin(spiking):
        assert (spiking.info.kind, spiking.info.T) == ("ann", 1)
        assert torch.equal(spiking.backbone(x).logits_TBC, ann.backbone(x).logits_TBC)
    assert (spiking.info.kind, spiking.info.T) == ("snn", 2)
    assert torch.equal(spiking.backbone(x).logits_TBC, before)


def test_neurons_are_restored_after_an_exception() -> None:
    client = client_of("snn")
    with pytest.raises(ValueError, match=r"^inside$"), as_twin(client):
        raise ValueError("inside")
    assert client.info.kind == "snn"
    assert not any(type(m).__name__ == "Continuous" for m in client.backbone.modules())


def test_only_the_first_rounds_train_the_twin(monkeypatch: pytest.MonkeyPatch) -> None:
    fired: list[bool] = []
    original = Spiking.forward

    def counted(self: Spiking, x: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled():
            fired.append(True)
        return original(self, x)

    monkeypatch.setattr(Spiking, "forward", counted)
    client, spiking_rounds = client_of("snn"), []
    for index in range(4):
        fired.clear()
        take_turn(Standalone(), client, {}, Round(index, 4))
        spiking_rounds.append(bool(fired))
    assert spiking_rounds == [False, False, True, True]


def test_first_round_equals_that_of_an_ann_client() -> None:
    """Same steps, learning rate and momentum, for Standalone and AS-FedBridge."""
    for method in (Standalone(), ASFedBridge(bridge_width=0.375)):
        clients = [client_of(kind, method=method) for kind in ("snn", "ann")]
        down = method.server_init(TASK, [c.info for c in clients])
        for client in clients:
            take_turn(method, client, method.server_send(down, client.info, Round(0, 4)), Round(0, 4))
        spiking, ann = (c.state_dict() for c in clients)
        assert spiking.keys() == ann.keys()
        for name in spiking:
            torch.testing.assert_close(spiking[name], ann[name])


def test_event_data_has_no_twin() -> None:
    info = ClientInfo(0, "snn", "vgg9", 0.125, 2, 16, 4)
    message = r"^twin_rounds=2: on event data client 0 .* different stems; use twin_rounds=0$"
    with pytest.raises(BadInput, match=message):
        check_backbone(replace(TASK, frames=2, channels=4), info)
