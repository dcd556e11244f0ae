"""What a finished run left: accuracies, clients, rounds; read from its folder."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asfedbridge.core.errors import BadInput
from asfedbridge.runs.folder import SPEC, read_rounds, read_summary
from asfedbridge.runs.records import group_means, ordered

if TYPE_CHECKING:
    import matplotlib.axes
    import pandas


@dataclass(frozen=True)
class ClientResult:
    """One client of a finished run."""

    id: int
    kind: str
    model: str
    width: float
    T: int
    accuracy: float | None  # in percent, of its backbone on its own test images; None: it was never drawn
    train: int  # examples
    test: int
    folder: Path  # of the run


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

    @property
    def accuracy(self) -> dict[str, float]:
        """Mean accuracy in percent of each kind of client, and of ``all``."""
        return dict(self.summary["accuracy"])

    @property
    def method(self) -> str:
        return str(self.summary["method"])

    @cached_property
    def clients(self) -> list[ClientResult]:
        known = [field.name for field in fields(ClientResult) if field.name != "folder"]
        return [
            ClientResult(**{name: entry[name] for name in known}, folder=self.folder)
            for entry in self.summary["clients"]
        ]

    @cached_property
    def rounds(self) -> list[dict[str, Any]]:
        """One record for each client and round: losses, accuracies at ``received`` and ``trained``, bytes, seconds.

        The closing visit is the round after the last.
        """
        return [dict(record) for record in read_rounds(self.folder)]

    @property
    def settings(self) -> dict[str, Any]:
        """The specification of the run, as the nested tables of its spec.toml."""
        return tomllib.loads((self.folder / SPEC).read_text(encoding="utf-8"))

    def to_frame(self) -> "pandas.DataFrame":
        """The rounds as a pandas DataFrame, one row for each client and round. Needs pandas."""
        try:
            import pandas
        except ImportError:
            raise ImportError("Result.to_frame needs pandas: pip install pandas") from None
        return pandas.DataFrame(self.rounds)

    def curves(self) -> dict[str, list[tuple[int, float]]]:
        """For each kind of client and ``all``: (round, mean accuracy), at the point where the method is judged."""
        key = f"{self.summary['point']}.accuracy"
        by_round: dict[int, list[dict[str, Any]]] = {}
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


def load(folder: str | Path) -> Result:
    """The result of a finished run, from its folder alone.

    >>> afb.load("runs/mine").accuracy["all"]
    91.7
    """
    folder = Path(folder)
    summary = read_summary(folder)
    if summary is None:
        begun = (folder / SPEC).exists()
        raise BadInput(
            f"{folder}: the run has not ended; finish it with resume=True" if begun else f"{folder}: is no run folder"
        )
    return Result(folder, summary)
