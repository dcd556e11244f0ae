"""The result of a finished run: accuracies, clients and rounds, read from its folder."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asfedbridge.core.errors import BadInput
from asfedbridge.core.reading import is_there, read_toml
from asfedbridge.data.sources.registry import data_root as find_data_root
from asfedbridge.runs.client_builder import Models
from asfedbridge.runs.client_card import ClientCard
from asfedbridge.runs.folder import SPEC, read_summary
from asfedbridge.runs.record_files import ROUNDS, read_rounds
from asfedbridge.runs.records import RoundRecord, group_means, ordered
from asfedbridge.runs.search import find_clients, load_client
from asfedbridge.runs.trained import Evaluation, Prediction, TrainedClient

if TYPE_CHECKING:
    import matplotlib.axes
    import pandas
    from torch import nn

    from asfedbridge.export.writer import Export

Opener = Callable[[int], TrainedClient]  # takes the client's id
SHOWN = ("id", "kind", "model", "width", "T", "accuracy", "train", "test")


@dataclass(frozen=True)
class ClientResult:
    """One client of a finished run, read from its file when it is first used.

    >>> client = afb.load("runs/mine").clients[5]
    >>> client.predict("photos/").names
    ['cat', 'ship']
    """

    id: int
    kind: str
    model: str
    width: float
    T: int
    accuracy: float | None  # of the backbone, in percent, on its own test images; None: never drawn
    train: int  # examples
    test: int
    folder: Path  # of the run
    opener: Opener = field(repr=False, compare=False)

    @cached_property
    def trained(self) -> TrainedClient:
        """The trained client; BadInput if its file is not available."""
        return self.opener(self.id)

    @property
    def card(self) -> ClientCard:
        """What the client is and what input it expects."""
        return self.trained.card

    @property
    def module(self) -> "nn.Module":
        """The backbone, in evaluation mode. Takes normalised images and returns an ``Output`` with ``.logits``."""
        return self.trained.module

    @property
    def bridge(self) -> "nn.Module | None":
        return self.trained.bridge

    def predict(self, images: Any, fused: bool = False) -> Prediction:
        """See ``TrainedClient.predict``."""
        return self.trained.predict(images, fused)

    def evaluate(self, data: Any, fused: bool = False, data_root: str | Path | None = None) -> Evaluation:
        """See ``TrainedClient.evaluate``."""
        return self.trained.evaluate(data, fused, data_root)

    def export(self, path: str | Path, **options: Any) -> "Export":
        """See ``TrainedClient.export``."""
        return self.trained.export(path, **options)


@dataclass(frozen=True, repr=False)
class Result:
    """A finished run. Everything is read from its folder; the training data are not needed.

    >>> result = afb.load("runs/mine")
    >>> result.accuracy["snn"]
    88.12
    >>> result.clients[5].accuracy, result.clients[5].kind
    (86.3, 'snn')
    """

    folder: Path
    summary: Mapping[str, Any]  # the content of summary.json
    opener: Opener = field(compare=False)

    @property
    def accuracy(self) -> dict[str, float]:
        """Mean accuracy in percent of each kind of client, and of ``all``."""
        return dict(self.summary["accuracy"])

    @property
    def method(self) -> str:
        return str(self.summary["method"])

    @cached_property
    def clients(self) -> list[ClientResult]:
        return [
            ClientResult(**{name: entry[name] for name in SHOWN}, folder=self.folder, opener=self.opener)
            for entry in self.summary["clients"]
        ]

    @cached_property
    def rounds(self) -> list[RoundRecord]:
        """One record for each client and round: losses, accuracies at ``received`` and ``trained``, bytes, seconds.

        The closing visit is the round after the last.
        """
        if not is_there(self.folder / ROUNDS):
            raise BadInput(f"{self.folder}: {ROUNDS} is missing; copy it from the run's original folder")
        return read_rounds(self.folder)

    @property
    def settings(self) -> dict[str, Any]:
        """The specification of the run, as the nested tables of its spec.toml."""
        return read_toml(self.folder / SPEC)

    def to_frame(self) -> "pandas.DataFrame":
        """The rounds as a pandas DataFrame, one row for each client and round. Needs pandas."""
        try:
            import pandas
        except ImportError:
            raise ImportError("Result.to_frame needs pandas: pip install pandas") from None
        return pandas.DataFrame(self.rounds)

    def curves(self) -> dict[str, list[tuple[int, float]]]:
        """For each kind of client and ``all``: (round, mean accuracy), at the method's evaluation point."""
        key = f"{self.summary['point']}.accuracy"
        by_round: dict[int, list[RoundRecord]] = {}
        for record in self.rounds:
            if key in record:
                by_round.setdefault(record["round"], []).append(record)
        found: dict[str, list[tuple[int, float]]] = {group: [] for group in self.accuracy}
        for number, records in sorted(by_round.items()):
            for group, mean in ordered(group_means(records)[key]).items():
                found.setdefault(group, []).append((number, mean))
        return found

    def plot(self, ax: "matplotlib.axes.Axes | None" = None) -> "matplotlib.axes.Axes":
        """Draw the curves; returns the axes. Needs matplotlib."""
        try:
            from matplotlib import pyplot
        except ImportError:
            raise ImportError("Result.plot needs matplotlib: pip install matplotlib") from None
        if ax is None:
            _, ax = pyplot.subplots()
        for group, points in self.curves().items():
            ax.plot(*zip(*points, strict=True), label=group)
        ax.set(xlabel="round", ylabel="accuracy (%)", title=f"{self.method} on {self.summary['data']}")
        ax.legend()
        return ax

    def __repr__(self) -> str:
        shown = ", ".join(f"{group} {value:.2f}" for group, value in self.accuracy.items())
        return f"Result({self.method}, accuracy: {shown}, folder: {self.folder})"


def load(
    folder: str | Path,
    *,
    checkpoint: bool = False,
    models: Models | None = None,
    trust: bool = False,
    data_root: str | Path | None = None,
) -> Result:
    """Load the result of a finished run from its folder.

    Args:
        folder: the run folder.
        checkpoint: use the clients of the last checkpoint, if the run is not finished or has no client files. This
            reads the run's data.
        models: your own models that no plugin registers, by name: functions or classes that make them, or modules.
        trust: import the functions named in the client files; this executes their code.
        data_root: the folder of downloaded data sets, for ``checkpoint``.

    >>> run = afb.load("runs/mine")
    >>> run.accuracy["all"]
    91.7
    >>> run.clients[5].predict("photos/").names
    ['cat', 'ship']
    """
    folder = Path(folder)
    summary = read_summary(folder)
    if summary is None and not is_there(folder / SPEC):
        raise BadInput(f"{folder}: is not a run folder")
    if checkpoint and (summary is None or not find_clients(folder)):
        from asfedbridge.runs.checkpointed import open_checkpoint

        return Result(folder, *open_checkpoint(folder, find_data_root(str(data_root) if data_root else None)))
    if summary is None:
        raise BadInput(
            f"{folder}: the run is not finished; finish it with resume=True, or use the clients of its last checkpoint "
            f"with checkpoint=True"
        )
    return Result(folder, summary, lambda client: load_client(folder, client, models=models, trust=trust))
