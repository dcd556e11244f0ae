"""A complete method in one file: federated distillation by class (Jeong et al., 2018, "Communication-efficient
on-device machine learning").

Clients exchange their mean logits for each class, so ANN and SNN clients of any architecture can take part:

    asfedbridge run smoke --import method_from_scratch.py method=class-logits method.weight=0.5 --engine pool
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import asfedbridge as afb


class Teacher(nn.Module):
    """The last download, kept as a module because all state of a client is in its modules."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.logits: Tensor
        self.known: Tensor
        self.register_buffer("logits", torch.zeros(classes, classes))  # a row for each class
        self.register_buffer("known", torch.zeros(classes))  # 1: some client has this class


@afb.register_method("class-logits")
@dataclass(frozen=True)
class ClassLogits(afb.Method):
    """Clients exchange their mean logits for each class."""

    weight: float = 0.5  # weight of the distance to the mean logits of all clients

    def uploads(self, task: afb.Task, client: afb.ClientInfo) -> afb.Shapes:
        return {"logits": (task.classes, task.classes), "known": (task.classes,)}

    def downloads(self, task: afb.Task, client: afb.ClientInfo) -> afb.Shapes:
        return self.uploads(task, client)

    def client_init(self, client: afb.Client) -> None:
        client.add("teacher", Teacher(client.task.classes))

    def client_receive(self, client: afb.Client, down: afb.Payload, rnd: afb.Round) -> None:
        client.modules["teacher"].load_state_dict(down)

    def client_round(self, client: afb.Client, rnd: afb.Round) -> afb.Upload:
        teacher = client.modules["teacher"]
        assert isinstance(teacher, Teacher)

        def losses(out: afb.Output, x: Tensor, y: Tensor) -> dict[str, Tensor]:
            distance = F.mse_loss(out.logits, teacher.logits[y], reduction="none").mean(dim=1)
            return {
                "ce": afb.supervise(client, out, y),
                "distil": self.weight * (distance * teacher.known[y]).mean(),
            }

        metrics = afb.fit_backbone(client, rnd, "local", losses)  # the epochs and learning rates of the run
        return afb.Upload(mean_logits(client), metrics)

    def server_init(self, task: afb.Task, clients: Sequence[afb.ClientInfo]) -> afb.Payload:
        return Teacher(task.classes).state_dict()

    def server_send(self, state: afb.Payload, client: afb.ClientInfo, rnd: afb.Round) -> afb.Payload:
        return state

    def server_round(
        self,
        state: afb.Payload,
        clients: Sequence[afb.ClientInfo],
        ups: Mapping[int, afb.Upload],
        rnd: afb.Round,
    ) -> afb.Payload:
        payloads = [ups[client.id].payload for client in clients]
        owners = sum(up["known"] for up in payloads)
        total = sum(up["logits"] * up["known"][:, None] for up in payloads)
        assert isinstance(owners, Tensor)
        return {"logits": total / owners.clamp(min=1)[:, None], "known": (owners > 0).float()}


def mean_logits(client: afb.Client) -> afb.Payload:
    """The mean logits of each class over the client's training images."""
    classes = client.task.classes
    total, count = torch.zeros(classes, classes), torch.zeros(classes)
    client.backbone.eval()
    with torch.no_grad():
        for x, y in client.shard.train_batches_plain(client.task.batch_size):
            total.index_add_(0, y, client.backbone(client.place(x)).logits.cpu())
            count += torch.bincount(y, minlength=classes)
    return {"logits": total / count.clamp(min=1)[:, None], "known": (count > 0).float()}


def main() -> None:
    spec = afb.recipe("smoke", method="class-logits", fleet="1*vgg9@0.125:ann,2*vgg9@0.125:snn", rounds=2)
    result = afb.run(spec, engine="pool", workers=2)
    print(f"{result.method}: {result.accuracy['all']:.1f} %, {result.summary['payload_mb'] * 2**20:.0f} bytes up")


if __name__ == "__main__":  # worker processes import this file
    main()
