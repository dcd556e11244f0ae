"""AdamW and half precision: every method runs, and the bits are the same in all engines and after a resume."""

import math
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from asfedbridge.core.method import METHODS, Method
from asfedbridge.core.task import Optimiser, Round
from asfedbridge.engines import checkpoint
from asfedbridge.engines.local import LocalEngine
from asfedbridge.engines.loop import federate
from asfedbridge.runs.recipes import smoke
from asfedbridge.runs.setting import Setting, prepare
from asfedbridge.runs.spec import apply_overrides

IDENTITY = {"specification": "a", "data": "b", "partition": "c"}
ADAMW = Optimiser(name="adamw", lr_ann=1e-3, lr_snn=1e-3)


def make(name: str) -> Method:
    small = smoke(name).method
    return replace(small, bridge_lr=1e-3) if "bridge_lr" in vars(small) else small  # type: ignore[call-arg]


@pytest.fixture(scope="module")
def adamw(setting: Setting, federation: Any) -> Any:
    return type(federation)(replace(setting, task=replace(setting.task, optimiser=ADAMW)))


# AS-FedBridge trains two networks in two stages, FedFree resets single layers, FedAvg whole backbones.
@pytest.mark.parametrize("name", ["as-fedbridge", "fedfree", "fedavg"])
def test_adamw_is_the_same_everywhere(adamw: Any, federation: Any, tmp_path: Path, name: str) -> None:
    method = make(name)
    plain = adamw.plain(method, 0.5)
    assert plain.differences(adamw.play_over_bytes(method, 0.5, backwards=True)) == []
    assert plain.differences(adamw.play_in_pool(method, tmp_path, 0.5)) == []
    assert plain.differences(federation.plain(method, 0.5))  # SGD does something else


@pytest.mark.parametrize("second", ["local", "pool"])
def test_a_resumed_run_with_adamw_is_uninterrupted(adamw: Any, pool_engine: Any, tmp_path: Path, second: str) -> None:
    method, kinds = make("as-fedbridge"), {"local": LocalEngine, "pool": pool_engine}
    folder = tmp_path / checkpoint.CLIENTS

    class Stop(Exception):
        pass

    def stop(rnd: Round, state: Any) -> None:
        checkpoint.save(tmp_path, rnd.index + 1, state, engine, IDENTITY)
        raise Stop

    with closing(adamw.engine(method, folder=folder)) as engine, pytest.raises(Stop):
        adamw.play(method, engine, after=stop)
    with closing(adamw.engine(method, kinds[second], folder=folder)) as fresh:
        found = checkpoint.load(tmp_path, fresh, IDENTITY)
        assert found is not None
        assert found.next_round == 1
        resumed = adamw.play(method, fresh, start=1, state=found.server)
    plain = adamw.plain(method)
    for kept in ("momentum", "second_moment", "steps"):
        assert {key.split("/")[1] for key in plain.trained[0] if key.startswith(kept)} == {"backbone", "bridge"}
    assert (plain.server, plain.trained) == (resumed.server, resumed.trained)


def play(method: Method, setting: Setting) -> Mapping[str, torch.Tensor]:
    """All tensors after the run: the server's, what clients uploaded, and their private states."""
    found: dict[str, torch.Tensor] = {}
    engine = LocalEngine(method, setting.task, setting.clients, setting.shards)

    def after_round(rnd: Round, clients: Any, sent: Any, ups: Mapping[int, Any], state: Any) -> None:
        for i, up in ups.items():
            assert all(map(math.isfinite, up.metrics.values()))
            found.update({f"upload/{rnd.index}/{i}/{key}": t for key, t in up.payload.items()})

    server = federate(method, setting.task, engine, after_round)
    found |= {f"server/{key}": t for key, t in server.items()}
    for client in setting.clients:
        found |= {f"client/{client.id}/{key}": t for key, t in engine.client_state(client.id).items()}
    return found


@pytest.mark.parametrize("name", sorted(METHODS))
def test_half_precision_stays_inside_forward_passes(setting: Setting, name: str) -> None:
    """Two rounds in bf16: what is sent and kept is what it is in fp32 in name, shape and type, and finite."""
    method = make(name)
    tensors, plain = (
        play(method, replace(setting, task=replace(setting.task, precision=precision)))
        for precision in ("bf16", "fp32")
    )
    assert method.partial or tensors.keys() == plain.keys()  # which part is sent may depend on rounding
    for key, tensor in tensors.items():
        assert tensor.dtype not in (torch.bfloat16, torch.float16), key
        assert not tensor.is_floating_point() or (tensor.dtype == torch.float32 and tensor.isfinite().all()), key
        assert method.partial or (tensor.dtype, tensor.shape) == (plain[key].dtype, plain[key].shape), key
    assert any(not torch.equal(t, plain[key]) for key, t in tensors.items() if key.startswith("client/"))


def test_all_kinds_and_families_train_in_half_precision(tmp_path: Path) -> None:
    kinds = "resnet18@0.125:bnn,resnet18@0.125:qnn:b=4,vgg9@0.125:qnn:b=2,mobilenet@0.125:snn,resnet18-ms@0.125:snn"
    small = {"fleet": kinds, "precision": "bf16", "T": 2, "train_per_class": 4, "test_per_class": 2, "rounds": 2}
    spec = apply_overrides(smoke(), small | {"partition": "iid", "feature_dim": 16})
    for key, tensor in play(spec.method, prepare(spec, tmp_path)).items():
        assert not tensor.is_floating_point() or (tensor.dtype == torch.float32 and tensor.isfinite().all()), key


def test_half_precision_is_the_same_in_workers(setting: Setting, federation: Any, tmp_path: Path) -> None:
    half = type(federation)(replace(setting, task=replace(setting.task, precision="bf16")))
    method = make("as-fedbridge")
    assert half.plain(method).differences(half.play_in_pool(method, tmp_path)) == []
