import subprocess
import sys

import pytest
import torch
from torch import nn

from asfedbridge.core.optimiser import SGD

TRAINS_ON_DIGITS = """
import sys
from asfedbridge.core.optimiser import SGD
from asfedbridge.data.sources.digits import read_digits
from torch import nn
images, labels = read_digits()
assert images.shape == (1797, 8, 8) and len(labels) == 1797
layer = nn.Linear(2, 1)
optimiser = SGD([{"params": list(layer.parameters()), "lr": 0.1}], momentum=0.9)
optimiser.zero_grad()
layer.weight.sum().backward()
optimiser.step()
print(sorted({"torch._dynamo", "sklearn"} & set(sys.modules)))
"""


def trained(make_optimiser: type, decay: float) -> tuple[dict[str, torch.Tensor], list[torch.Tensor]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4)).to(
        memory_format=torch.channels_last  # type: ignore[call-overload]
    )
    unused = nn.Parameter(torch.ones(3))
    weights = [p for p in model.parameters() if p.dim() > 1]
    others = [*(p for p in model.parameters() if p.dim() == 1), unused]
    groups = [{"params": weights, "lr": 0.1, "weight_decay": decay}, {"params": others, "lr": 0.03}]
    optimiser = make_optimiser(groups, momentum=0.9)
    for step in range(4):
        optimiser.zero_grad(set_to_none=step % 2 == 0)
        model(torch.randn(5, 3, 8, 8)).square().sum().div(100).backward()
        optimiser.step()
    return model.state_dict(), [optimiser.state[p]["momentum_buffer"] for p in weights]


@pytest.mark.parametrize("decay", [0.0, 5e-4])
def test_the_bits_are_those_of_torch(decay: float) -> None:
    ours, kept = trained(SGD, decay)
    theirs, expected = trained(torch.optim.SGD, decay)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert all(torch.equal(a, b) for a, b in zip(kept, expected, strict=True))


def test_a_process_that_trains_imports_neither_dynamo_nor_scikit_learn() -> None:
    done = subprocess.run([sys.executable, "-c", TRAINS_ON_DIGITS], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
