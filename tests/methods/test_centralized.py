from pathlib import Path

import torch

from asfedbridge.runs.recipes import quickstart
from asfedbridge.runs.setting import prepare
from asfedbridge.runs.spec import apply_overrides

SMALL = {
    "fleet": "2*resnet18@0.125:ann,2*resnet18@0.125:snn,1*resnet18@0.25:snn,1*resnet18@0.125:snn:T=8",
    "T": 2,
    "train_per_class": 6,
    "test_per_class": 6,
    "partition": "iid",
}


def test_first_client_of_each_model_holds_all_data(tmp_path: Path) -> None:
    federated = prepare(apply_overrides(quickstart(), SMALL), tmp_path)
    pooled = prepare(apply_overrides(quickstart(), SMALL | {"method": "centralized"}), tmp_path)
    assert [(c.id, c.kind, c.width, c.T) for c in pooled.clients] == [
        (0, "ann", 0.125, 1),
        (1, "snn", 0.125, 2),
        (2, "snn", 0.25, 2),
        (3, "snn", 0.125, 8),
    ]
    for name in ("x_train", "x_test"):
        everything = torch.cat([getattr(s, name).flatten(1) for s in federated.shards])
        for client, shard in zip(pooled.clients, pooled.shards, strict=True):
            own = getattr(shard, name).flatten(1)
            assert len(own) == len(everything) == 60
            assert torch.equal(own.unique(dim=0), everything.unique(dim=0))
            assert (client.train_size, client.test_size) == (60, 60)
