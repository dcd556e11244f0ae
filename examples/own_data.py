"""Your own data: any map-style dataset of (image, label) pairs, one for each participant.

A data set is a torch `Dataset`, a Hugging Face dataset with columns `image` and `label`, or a pair of arrays. Images
are uint8, or floats from 0 to 1; they are normalised automatically.
"""

import numpy as np
from torch.utils.data import Dataset, Subset

import asfedbridge as afb


class Stripes(Dataset):
    """Images of horizontal (class 0), vertical (1) and diagonal (2) stripes with noise."""

    def __init__(self, count: int, seed: int) -> None:
        self.count, self.seed = count, seed

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        if not 0 <= index < self.count:
            raise IndexError(index)
        rng = np.random.default_rng([self.seed, index])
        row, column = np.mgrid[:12, :12] + rng.integers(4)
        label = index % 3
        wave = np.sin((row, column, row + column)[label] * np.pi / 2)
        return np.clip(0.5 + 0.3 * wave + 0.1 * rng.standard_normal((12, 12)), 0, 1).astype(np.float32), label


@afb.register_data("stripes", "synthetic stripes, 12x12 grey, 3 classes", augment="none")
def stripes() -> tuple[Stripes, Stripes]:
    """Training and test set. Recipes can use it by name: afb.recipe("smoke", data="stripes")."""
    return Stripes(180, seed=0), Stripes(60, seed=1)


def main() -> None:
    everything, test = stripes()
    shards = [Subset(everything, range(start, start + 60)) for start in (0, 60, 120)]
    kinds = ("ann", "snn", "snn")
    clients = [
        afb.Participant("vgg9@0.125", shard, kind=kind, T=2, test=test)
        for shard, kind in zip(shards, kinds, strict=True)
    ]
    federation = afb.Federation(method="fedproto", clients=clients, batch_size=8)
    result = afb.federate(federation, rounds=3)
    print(result)
    # The same data by name, partitioned by the library: two classes for each client.
    spec = afb.recipe("smoke", method="fedproto", data="stripes", fleet="1+2", partition="classes:2", T=2)
    print(afb.run(spec))


if __name__ == "__main__":
    main()
