"""Your own method: FedAvg whose server moves only part of the way to the mean.

This script runs it. The command line accepts the same file:

    asfedbridge run smoke --import own_method.py method=half method.step=0.7 --engine pool
    asfedbridge reproduce main --scale cpu --import own_method.py --add half
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import asfedbridge as afb
from asfedbridge.methods.fedavg import FedAvg


@afb.register_method("half")
@dataclass(frozen=True)
class Half(FedAvg):
    """FedAvg with a server step: the new state is old + step * (mean - old)."""

    step: float = 0.5  # fields are hyper-parameters: method.step

    def server_round(
        self,
        state: afb.Payload,
        clients: Sequence[afb.ClientInfo],
        ups: Mapping[int, afb.Upload],
        rnd: afb.Round,
    ) -> afb.Payload:
        mean = super().server_round(state, clients, ups, rnd)
        return {name: old + self.step * (mean[name] - old) for name, old in state.items()}


def main() -> None:
    spec = afb.recipe("smoke", method="half", method__step=0.7, fleet="3*vgg9@0.125:ann", rounds=2)
    result = afb.run(spec, engine="pool", workers=2)
    print(f"{result.method}, step {result.settings['method']['step']}: {result.accuracy['all']:.1f} %")


if __name__ == "__main__":  # worker processes import this file
    main()
