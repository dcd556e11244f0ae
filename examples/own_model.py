"""Your own models: a plain torch module and a SpikingJelly network learn together.

Neither depends on asfedbridge. Both return logits; the feature that methods compare across clients is the input of the
last linear layer. `asfedbridge.Participant` describes how modules are adapted.
"""

import torch
from sklearn.datasets import load_digits
from spikingjelly.activation_based import functional, layer, neuron
from torch import Tensor, nn

import asfedbridge as afb


class Convolutional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 16, 3, padding=1)
        self.second = nn.Conv2d(16, 16, 3, padding=1)
        self.classifier = nn.Linear(16 * 4 * 4, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.max_pool2d(self.first(x).relu(), 2)
        return self.classifier(self.second(x).relu().flatten(1))


def make_spiking() -> nn.Module:
    """A network in SpikingJelly's multi-step mode: it takes [T, B, C, H, W]."""
    network = nn.Sequential(
        layer.Conv2d(1, 16, 3, padding=1, bias=False),
        layer.BatchNorm2d(16),
        neuron.LIFNode(decay_input=False),
        layer.MaxPool2d(2, 2),
        layer.Flatten(),
        layer.Linear(16 * 4 * 4, 10),
    )
    functional.set_step_mode(network, "m")
    return network


def main() -> None:
    digits = load_digits()
    x, y = torch.tensor(digits.images / 16), torch.tensor(digits.target)
    clients = [
        afb.Participant(Convolutional, (x[:150], y[:150])),
        afb.Participant(make_spiking, (x[150:300], y[150:300]), kind="snn", T=4),
        afb.Participant("vgg9@0.125", (x[300:450], y[300:450]), kind="snn", T=2),  # a model of asfedbridge
    ]
    federation = afb.Federation(method="as-fedbridge", clients=clients, seed=1)
    accuracy = {}
    for engine in ("local", "pool"):
        result = afb.federate(federation, rounds=2, engine=engine, out=f"runs/own-model-{engine}", resume=True)
        accuracy[engine] = [client.accuracy for client in result.clients]
        print(f"{engine}: {result}")
    assert accuracy["local"] == accuracy["pool"]  # the same bits in one process and in several


if __name__ == "__main__":  # worker processes import this file
    main()
