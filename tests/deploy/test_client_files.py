"""A client of a run over Flower, used on its node; the server has none."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")
from tests.deploy.test_apps import make_spec, serve, write_data

import asfedbridge as afb
from asfedbridge.cli import main
from asfedbridge.core.errors import BadInput
from asfedbridge.runs.run import execute
from asfedbridge.runs.setting import prepare


@pytest.mark.parametrize("method", ["fedavg", pytest.param("as-fedbridge", marks=pytest.mark.long)])
def test_a_node_keeps_its_trained_client(tmp_path: Path, method: str, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = "2*resnet18@0.125:ann" if method == "fedavg" else "1*resnet18@0.125:ann,1*resnet18@0.125:snn"
    nodes: dict[int, dict[str, Any]] = {
        i: {
            "client-id": i,
            "data": write_data(tmp_path / f"{i}.npz", train=20 + 4 * i),
            "state-dir": str(tmp_path / f"node{i}"),
        }
        for i in range(2)
    }
    summary = serve(make_spec(method=method, fleet=fleet), nodes, tmp_path / "server")
    assert not list((tmp_path / "server").rglob("client-*"))
    with pytest.raises(BadInput, match="its clients are on the nodes of a deployment"):
        _ = afb.load(tmp_path / "server").clients[0].module
    for i, node in nodes.items():
        client = afb.load_client(tmp_path / f"node{i}")
        assert client.card.id == i
        assert client.card.classes == tuple(map(str, range(10)))
        assert client.evaluate(node["data"]).accuracy == summary.clients[i].accuracy == client.card.accuracy
        assert client.card.data == "nodes"
        mode = next((tmp_path / f"node{i}").glob("*/client-*")).stat().st_mode
        assert mode & 0o077 == 0  # a node's states are its operator's
    assert main(["evaluate", str(tmp_path / "node0"), "--data", nodes[0]["data"]]) == 0
    assert f"{summary.clients[0].accuracy:.2f}" in capsys.readouterr().out


@pytest.mark.long
def test_nodes_that_share_a_data_set_write_what_the_local_engine_writes(tmp_path: Path) -> None:
    spec = make_spec(data="digits", train_per_class=4, test_per_class=2, method="as-fedbridge", rounds=1)
    execute(spec, tmp_path / "local", tmp_path)
    nodes = {i: {"client-id": i, "state-dir": str(tmp_path / "states")} for i in range(2)}
    serve(spec, nodes, tmp_path / "server")
    for i in range(len(prepare(spec, tmp_path).clients)):
        for suffix in ("json", "safetensors"):
            (there,) = (tmp_path / "states").glob(f"*/client-{i:04d}/client-{i:04d}.{suffix}")
            assert there.read_bytes() == (tmp_path / "local" / "clients" / there.name).read_bytes()
