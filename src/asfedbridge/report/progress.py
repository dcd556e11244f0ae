"""Live progress of a run: one moving line on a terminal, one line per round everywhere."""

import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TextIO

from asfedbridge.core import ClientInfo, Round
from asfedbridge.data import describe_partition
from asfedbridge.runs import IN_PYTHON, ON_NODES, Callback, EventRecord, RoundRecord, Run, group_means, ordered


class Progress(Callback):
    """Writes to a stream, stderr by default: results belong to stdout."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stderr
        self.live = self.stream.isatty()
        self.total = self.next_round = self.clients = 0
        self.columns: list[tuple[str, str]] = []  # titles and keys of what the method shows beside backbones
        self.began = time.perf_counter()
        self.played = 0

    def on_wait(self, reason: str) -> None:
        self._line(f"{reason} ...")

    def on_run_begin(self, run: Run) -> None:
        spec, setting, next_round = run.spec, run.setting, run.next_round
        self.total, self.next_round, self.clients = spec.rounds, next_round, len(setting.clients)
        added, judged = spec.method.columns(), spec.method.reports
        self.columns = [(c.title, f"{c.point or judged}.{c.predictor}_accuracy") for c in added]
        self.began = time.perf_counter()
        split = describe_partition(spec.partition, spec.alpha)
        split = "each client's own" if spec.data in (IN_PYTHON, ON_NODES) else split
        train = sum(c.train_size for c in setting.clients)
        size, frames = setting.task.image_size, setting.task.frames
        images = "images" if frames == 1 else f"examples of {frames} frames"
        self._line(
            f"{spec.method.name} on {spec.data}: {train} training {images}, {size}x{size}, {split}, "
            f"{len(setting.clients)} clients ({spec.fleet}), rounds: {spec.rounds}, seed {spec.seed}"
        )
        for note in setting.notes:
            self._line(note)
        if next_round:
            self._line(f"resumed after round {next_round}")

    def on_epoch_end(
        self, run: Run, client: ClientInfo, stage: str, epoch: int, epochs: int, losses: Mapping[str, float]
    ) -> None:
        if not self.live:
            return
        numbers = " ".join(f"{name} {value:.3f}" for name, value in losses.items())
        status = (
            f"round {self.next_round + 1}/{self.total}  client {client.id} of {self.clients}, {client.kind}  "
            f"{stage} {epoch + 1}/{epochs}  {numbers}  {self._left()}"
        )
        columns = shutil.get_terminal_size().columns
        self.stream.write("\r\x1b[2K" + status[: columns - 1])
        self.stream.flush()

    def on_round_end(self, run: Run, rnd: Round, records: Sequence[RoundRecord]) -> None:
        means = group_means(records)
        point = "received" if rnd.closing else "trained"
        groups = "  ".join(f"{g} {v:6.2f}" for g, v in ordered(means.get(f"{point}.accuracy", {})).items())
        beside = "".join(f"  {name} {means[key]['all']:6.2f}" for name, key in self.columns if key in means)
        self.next_round = rnd.index + 1
        self.played += 1
        width = len(str(self.total))
        name = "closing visit" if rnd.closing else f"round {self.next_round:{width}d}/{self.total}"
        self._line(
            f"{name}  {'accuracy ' if groups else ''}{groups}{beside}  {'' if rnd.closing else self._left()}".rstrip()
        )
        if rnd.closing and run.played < self.total:
            self._line(f"stopped after round {run.played}: {run.stopped}")

    def on_event(self, run: Run, event: EventRecord) -> None:
        who = "a node" if event.client is None else f"client {event.client}"
        self._line(f"round {event.round + 1}/{self.total}  {who} {event.event}: {event.reason}")

    def _left(self) -> str:
        if not self.played:
            return ""
        seconds = (time.perf_counter() - self.began) / self.played * (self.total - self.next_round)
        if seconds < 0.5:
            return ""
        return f"{seconds / 60:.0f} min left" if seconds >= 90 else f"{seconds:.0f} s left"

    def _line(self, text: str) -> None:
        self.stream.write(("\r\x1b[2K" if self.live else "") + text + "\n")
        self.stream.flush()
