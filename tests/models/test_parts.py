import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asfedbridge.models.neuron import Continuous
from asfedbridge.models.parts import BasicBlock, BatchNorm, Shortcut

# Runs in a separate process, because a failure corrupts memory.
NARROW = """
import torch
from asfedbridge.models.parts import BatchNorm, Shortcut

torch.manual_seed(0)
for inputs in range(1, 18):
    shortcut = Shortcut(inputs, 8, 2, BatchNorm).to(memory_format=torch.channels_last)
    weight = next(shortcut.parameters())
    x = torch.randn(8, inputs, 8, 8).contiguous(memory_format=torch.channels_last)
    up = torch.randn(8, 8, 4, 4)
    (grad,) = torch.autograd.grad((shortcut(x) * up).sum(), weight)
    shortcut.double()
    (expected,) = torch.autograd.grad((shortcut(x.double()) * up).sum(), next(shortcut.parameters()))
    assert torch.allclose(grad.double(), expected, rtol=1e-2, atol=1e-3), inputs
    kept = [torch.randn(37) for _ in range(50)]
"""


def test_narrow_shortcuts_have_correct_gradients_and_do_not_crash() -> None:
    """oneDNN writes past its workspace in the weight gradient of a strided 1x1 convolution (oneDNN issue 6035).

    This happens in channels-last layout with fewer input channels than floats per register: 8, or 16 with AVX-512.
    """
    done = subprocess.run([sys.executable, "-c", NARROW], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-500:]


def test_shortcut_is_the_identity_if_shapes_agree() -> None:
    x = torch.randn(2, 4, 6, 6)
    assert Shortcut(4, 4, 1, BatchNorm)(x) is x
    assert Shortcut(4, 4, 2, BatchNorm)(x).shape == (2, 4, 3, 3)
    assert Shortcut(4, 5, 1, BatchNorm)(x).shape == (2, 5, 6, 6)


@pytest.mark.parametrize("size", [7, 8])
def test_strided_shortcut_takes_every_second_pixel(size: int) -> None:
    shortcut = Shortcut(3, 5, 2, lambda _: nn.Identity())
    (weight,) = shortcut.parameters()
    x = torch.randn(2, 3, size, size)
    torch.testing.assert_close(shortcut(x), torch.einsum("oi,bihw->bohw", weight[:, :, 0, 0], x[:, :, ::2, ::2]))


def test_block_activates_after_the_addition() -> None:
    """Compared with act(norm conv act(norm conv x) + shortcut(x)) written in plain functions."""
    block = BasicBlock(3, 5, 2, Continuous(), lambda _: nn.Identity())
    x = torch.randn(2, 3, 8, 8)
    hidden = F.conv2d(x, block.conv1.weight, stride=2, padding=1).clamp(min=0)
    added = F.conv2d(hidden, block.conv2.weight, padding=1) + block.shortcut(x)
    assert added.min() < 0
    torch.testing.assert_close(block(x), added.clamp(min=0))


def fill(norm: nn.BatchNorm2d) -> None:
    with torch.no_grad():
        for tensor, values in (
            (norm.running_mean, [1.0, 2.0]),
            (norm.running_var, [4.0, 9.0]),
            (norm.weight, [2.0, 3.0]),
            (norm.bias, [0.5, -0.5]),
        ):
            tensor.copy_(torch.tensor(values))


def test_one_value_per_channel_becomes_the_bias() -> None:
    """The running statistics are not updated, and are used as usual in evaluation."""
    norm = BatchNorm(2, eps=0.0)
    fill(norm)
    x = torch.tensor([3.0, 5.0]).view(1, 2, 1, 1)
    assert norm(x).shape == x.shape
    assert norm(x).flatten().tolist() == [0.5, -0.5]
    assert norm.running_mean.tolist() == [1.0, 2.0]
    assert norm.running_var.tolist() == [4.0, 9.0]
    assert norm.eval()(x).flatten().tolist() == pytest.approx([(3 - 1) / 2 * 2 + 0.5, (5 - 2) / 3 * 3 - 0.5])


@pytest.mark.parametrize("shape", [(2, 2, 1, 1), (1, 2, 2, 1), (3, 2, 2, 2)])
def test_more_values_are_normalised_as_by_torch(shape: tuple[int, ...]) -> None:
    own, usual = BatchNorm(2), nn.BatchNorm2d(2)
    for norm in (own, usual):
        fill(norm)
    x: Tensor = torch.randn(shape)
    assert torch.equal(own(x), usual(x))
    assert torch.equal(own.running_var, usual.running_var)
    assert torch.equal(own.eval()(x), usual.eval()(x))
