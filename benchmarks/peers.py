"""Spiking ResNet-18 without a spiking library, for step.py: plain torch (eager or compiled as a whole) and jitted JAX.

Both take the tensors of our network by name. Each LIF layer is a loop over time, written as one would write it first:
`for` in torch, `lax.scan` in JAX. Convolutions and BatchNorm see all time steps at once, as in ours.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from contender import Answer, Case, Work

MOMENTUM, LEARNING_RATE = 0.9, 0.01
EPSILON, NORM_MOMENTUM = 1e-5, 0.1  # of BatchNorm, as in torch
STAGES = range(4)
BLOCKS = range(2)


class Triangle(torch.autograd.Function):
    """A spike at x >= 0, with the triangle as its surrogate derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return (x >= 0).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        slope: Tensor = (1 - x.abs()).clamp(min=0)
        return grad * slope


def _lif(x: Tensor, steps: int) -> Tensor:
    membrane, spikes = torch.zeros_like(x[: len(x) // steps]), []
    for current in x.chunk(steps):
        membrane = membrane / 2 + current
        spike: Tensor = Triangle.apply(membrane - 1)
        membrane = membrane * (1 - spike)
        spikes.append(spike)
    return torch.cat(spikes)


class PlainTorch(nn.Module):
    """``twin`` has the tensors: the network as our package builds it."""

    def __init__(self, twin: nn.Module, steps: int) -> None:
        super().__init__()
        self.twin, self.steps = twin, steps

    def forward(self, x: Tensor) -> Tensor:
        net: Any = self.twin
        x = _lif(net.norm(net.stem(x)).repeat(self.steps, 1, 1, 1), self.steps)
        for stage in net.stages:
            for block in stage:
                hidden = _lif(block.norm1(block.conv1(x)), self.steps)
                x = _lif(block.norm2(block.conv2(hidden)) + block.shortcut(x), self.steps)
        feature = _lif(net.projector(x.mean((2, 3))), self.steps)
        logits: Tensor = net.classifier(feature)
        return logits.view(self.steps, -1, logits.shape[-1]).mean(0)


def jax_work(case: Case, tensors: Mapping[str, Tensor], x: Tensor, y: Tensor, checked: int) -> Work:
    """Forward, backward and SGD (optax) in one jitted function. Images are NHWC, the fast layout of XLA on a CPU."""
    import jax
    import jax.numpy as jnp
    import optax

    jax.config.update("jax_enable_x64", True)  # for the check; all arrays name their type

    @jax.custom_jvp
    def spike(u: Any) -> Any:
        return (u >= 0).astype(u.dtype)

    @spike.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        (u,), (du,) = primals, tangents
        return spike(u), jnp.maximum(0, 1 - jnp.abs(u)) * du

    def lif(x_T: Any) -> Any:
        def advance(membrane: Any, current: Any) -> Any:
            membrane = membrane / 2 + current
            fired = spike(membrane - 1)
            return membrane * (1 - fired), fired

        return jax.lax.scan(advance, jnp.zeros_like(x_T[0]), x_T)[1]

    def conv(x: Any, weight: Any, stride: int = 1) -> Any:
        pad = (weight.shape[0] - 1) // 2
        names = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, weight, (stride, stride), [(pad, pad)] * 2, dimension_numbers=names)

    def norm(x: Any, p: Mapping[str, Any], name: str, seen: dict[str, Any]) -> Any:
        axes = tuple(range(x.ndim - 1))
        mean, variance = x.mean(axes), x.var(axes)
        size = x.size // x.shape[-1]
        seen[f"{name}.running_mean"], seen[f"{name}.running_var"] = mean, variance * size / (size - 1)
        return (x - mean) * jax.lax.rsqrt(variance + EPSILON) * p[f"{name}.weight"] + p[f"{name}.bias"]

    def forward(p: Mapping[str, Any], x: Any) -> tuple[Any, dict[str, Any]]:
        T, B = case["T"], len(x)
        seen: dict[str, Any] = {}

        def fire(x: Any) -> Any:
            return lif(x.reshape(T, B, *x.shape[1:])).reshape(T * B, *x.shape[1:])

        x = norm(conv(x, p["stem.weight"]), p, "norm", seen)
        x = fire(jnp.tile(x, (T, 1, 1, 1)))
        for stage in STAGES:
            for block in BLOCKS:
                at, stride = f"stages.{stage}.{block}", 2 if stage and not block else 1
                hidden = fire(norm(conv(x, p[f"{at}.conv1.weight"], stride), p, f"{at}.norm1", seen))
                out = norm(conv(hidden, p[f"{at}.conv2.weight"]), p, f"{at}.norm2", seen)
                if f"{at}.shortcut.0.weight" in p:
                    x = norm(conv(x, p[f"{at}.shortcut.0.weight"], stride), p, f"{at}.shortcut.1", seen)
                x = fire(out + x)
        feature = fire(x.mean((1, 2)) @ p["projector.weight"] + p["projector.bias"])
        logits = feature @ p["classifier.weight"] + p["classifier.bias"]
        return logits.reshape(T, B, -1).mean(0), seen

    def loss_of(p: Any, x: Any, y: Any) -> Any:
        logits, seen = forward(p, x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean(), (logits, seen)

    def arrays(dtype: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        made = {name: jnp.asarray(_as_jax(t), dtype) for name, t in tensors.items() if t.is_floating_point()}
        running = {name: t for name, t in made.items() if "running_" in name}
        return {name: t for name, t in made.items() if name not in running}, running

    optimiser = optax.sgd(LEARNING_RATE, momentum=MOMENTUM)
    gradient: Callable[..., Any] = jax.value_and_grad(loss_of, has_aux=True)

    @jax.jit
    def train(p: Any, running: Any, state: Any, x: Any, y: Any) -> Any:
        (_, (_, seen)), grads = gradient(p, x, y)
        updates, state = optimiser.update(grads, state, p)
        running = {name: (1 - NORM_MOMENTUM) * t + NORM_MOMENTUM * seen[name] for name, t in running.items()}
        return optax.apply_updates(p, updates), running, state

    p, running = arrays(jnp.float32)
    images, labels = jnp.asarray(x.permute(0, 2, 3, 1).numpy(), jnp.float32), jnp.asarray(y.numpy())
    held = [p, running, optimiser.init(p)]

    def step() -> None:
        held[:] = jax.block_until_ready(train(*held, images, labels))

    def answer() -> Answer:
        single, _ = jax.jit(forward)(arrays(jnp.float32)[0], images[:checked])
        few = images[:checked].astype(jnp.float64)
        (loss, (logits, _)), grads = jax.jit(gradient)(arrays(jnp.float64)[0], few, labels[:checked])
        by_name = {name: _as_torch(np.asarray(grad)) for name, grad in grads.items()}
        return {
            "logits": np.asarray(logits),
            "loss": np.asarray(loss),
            "gradient": np.concatenate([by_name[name].ravel() for name in sorted(by_name)]),
            "float32 logits": np.asarray(single),
        }

    return Work(step, answer, case["inner"])


def _as_jax(t: Tensor) -> Any:
    """Convolutions OIHW -> HWIO, linear layers transposed."""
    array = t.detach().numpy()
    return array.transpose(2, 3, 1, 0) if array.ndim == 4 else array.T


def _as_torch(array: Any) -> Any:
    return array.transpose(3, 2, 0, 1) if array.ndim == 4 else array.T
