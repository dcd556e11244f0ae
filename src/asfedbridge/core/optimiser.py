"""Stochastic gradient descent."""

from collections.abc import Callable
from typing import Any

import torch
from torch.optim.sgd import sgd

MOMENTUM = "momentum_buffer"  # torch's key of the state


class SGD(torch.optim.Optimizer):
    """``torch.optim.SGD``, with the same bits, state and groups. Building or stepping torch's own optimiser imports
    ``torch._dynamo``, which takes as long as importing torch: seconds in every process that trains."""

    def __init__(self, groups: list[dict[str, Any]], momentum: float) -> None:
        super().__init__(groups, {"momentum": momentum, "weight_decay": 0.0})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        self.param_groups.append(self.defaults | param_group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if set_to_none or p.grad is None:
                    p.grad = None
                else:
                    p.grad.zero_()

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        assert closure is None
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            buffers = [self.state[p].get(MOMENTUM) for p in params]
            sgd(
                params,
                [p.grad for p in params],
                buffers,
                weight_decay=group["weight_decay"],
                momentum=group["momentum"],
                lr=group["lr"],
                dampening=0.0,
                nesterov=False,
                maximize=False,
            )
            for p, buffer in zip(params, buffers, strict=True):
                self.state[p][MOMENTUM] = buffer
