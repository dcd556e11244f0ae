"""The pseudo-spike interface: continuous activations interpreted as firing rates."""

from collections.abc import Sequence

import torch
from torch import Tensor


def rate(activation: Tensor, scale_C: Tensor) -> Tensor:
    """clip(ReLU(a) / s, 0, 1) with one positive scale per channel (dimension 1 of ``activation``)."""
    scale = scale_C.view(1, -1, *[1] * (activation.dim() - 2))
    return (activation.relu() / scale).clamp(max=1.0)


def quantise(rate: Tensor, steps: int) -> Tensor:
    """Q_T: rounds to the nearest of {0, 1/T, ..., 1}; the gradient is the identity (straight-through)."""
    return rate + ((rate * steps).round() / steps - rate).detach()


def rate_loss(bridge_rate_BD: Tensor, snn_rate_BD: Tensor) -> Tensor:
    """Mean squared difference over examples and coordinates. No gradient reaches the SNN's rates."""
    return (bridge_rate_BD - snn_rate_BD.detach()).square().mean()


def pspr(
    rates: Sequence[Tensor],
    threshold: float = 0.5,
    spread: float = 1.0,
    minimum_deviation: float = 0.05,
    variance_weight: float = 1.0,
) -> Tensor:
    """Pseudo-spike polarisation regularisation of rates *before* quantisation.

    For each channel, mu and sigma are mean and standard deviation over batch and space. The loss of a port is the mean
    over channels of (|mu - V_th| - k_d sigma)_+^2 + lambda_var (sigma_min - sigma)_+^2. Returns the mean over ports.
    """
    ports = []
    for r in rates:
        over = [d for d in range(r.dim()) if d != 1]
        mean_C = r.mean(dim=over)
        # The gradient of a square root is infinite at zero: without 1e-12 a constant channel would give NaN.
        deviation_C = ((r - mean_C.view(1, -1, *[1] * (r.dim() - 2))).square().mean(dim=over) + 1e-12).sqrt()
        centring = ((mean_C - threshold).abs() - spread * deviation_C).relu().square()
        widening = (minimum_deviation - deviation_C).relu().square()
        ports.append((centring + variance_weight * widening).mean())
    return torch.stack(ports).mean()
