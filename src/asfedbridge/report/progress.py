"""Live progress of a run: one line per round and, on a terminal, a status line with a bar that moves with every epoch.

The status line counts the clients that have finished the round and names those at work: one on the engine ``local``,
one per worker on ``pool``.

In a log, rounds that end within ``LOG_SECONDS`` of the last line are left out, except the first and the last one.
"""

import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TextIO

from asfedbridge.core import ClientInfo, Round, printable
from asfedbridge.data import describe_partition
from asfedbridge.engines import count_at_work
from asfedbridge.runs import IN_PYTHON, ON_NODES, Callback, EventRecord, RoundRecord, Run, group_means, ordered

BAR = 10  # characters
LOG_SECONDS = 5.0


class Progress(Callback):
    """Writes to a stream, by default stderr because results go to stdout."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stderr
        self.live = self.stream.isatty()
        self.total = self.next_round = 0
        self.columns: list[tuple[str, str]] = []  # titles and record keys of the method's own columns
        self.began = time.perf_counter()
        self.played = 0
        self.epochs_done = self.epochs_per_round = 0  # of all clients: in this round, and in the last one
        self.at_work: dict[int, str] = {}  # the state of each client that is training
        self.turns_done = self.turns = 0  # of clients in this round: finished, and expected
        self.printed = 0.0  # when the last line was printed

    def on_wait(self, reason: str) -> None:
        self._line(f"{reason} ...")

    def on_run_begin(self, run: Run) -> None:
        spec, setting, next_round = run.spec, run.setting, run.next_round
        self.total, self.next_round = spec.rounds, next_round
        added, judged = spec.method.columns(), spec.method.reports
        self.columns = [(c.title, f"{c.point or judged}.{c.predictor}_accuracy") for c in added]
        self.turns = count_at_work(len(setting.clients), spec.participation)
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

    def on_turn_begin(self, run: Run, client: ClientInfo) -> None:
        self.at_work[client.id] = client.kind
        self._status(run)

    def on_turn_end(self, run: Run, client: ClientInfo) -> None:
        self.at_work.pop(client.id, None)
        self.turns_done += 1
        self._status(run)

    def on_epoch_end(
        self, run: Run, client: ClientInfo, stage: str, epoch: int, epochs: int, losses: Mapping[str, float]
    ) -> None:
        self.epochs_done += 1
        self.at_work[client.id] = f"{client.kind} {stage} {epoch + 1}/{epochs}"
        self._status(run, " ".join(f"{name} {value:.3f}" for name, value in losses.items()))

    def on_round_end(self, run: Run, rnd: Round, records: Sequence[RoundRecord]) -> None:
        means = group_means(records)
        point = "received" if rnd.closing else "trained"
        groups = "  ".join(f"{g} {v:6.2f}" for g, v in ordered(means.get(f"{point}.accuracy", {})).items())
        beside = "".join(f"  {name} {means[key]['all']:6.2f}" for name, key in self.columns if key in means)
        self.next_round = rnd.index + 1
        self.played += 1
        self.at_work, self.turns_done = {}, 0
        self.epochs_per_round, self.epochs_done = self.epochs_done, 0
        always = self.live or rnd.closing or self.played == 1 or self.next_round == self.total
        if not always and time.perf_counter() - self.printed < LOG_SECONDS:
            return
        width = len(str(self.total))
        name = "closing visit" if rnd.closing else f"round {self.next_round:{width}d}/{self.total}"
        self._line(
            f"{name}  {'accuracy ' if groups else ''}{groups}{beside}  {'' if rnd.closing else self._left()}".rstrip()
        )
        if rnd.closing and run.played < self.total:
            self._line(f"stopped after round {run.played}: {run.stopped}")

    def on_event(self, run: Run, event: EventRecord) -> None:
        self._line(f"round {event.round + 1}/{self.total}  {event.subject} {event.event}: {event.reason}")

    def _status(self, run: Run, losses: str = "") -> None:
        """``losses``: of the client that finished an epoch, shown if it is the only one at work."""
        if not self.live:
            return
        closing = bool(run.stopped) or self.next_round >= self.total
        place = "closing visit" if closing else f"round {self.next_round + 1}/{self.total} {self._bar()}"
        done = f"{self.turns_done}/{len(run.setting.clients) if closing else self.turns} clients"
        at_work = ", ".join(f"{number} {state}" for number, state in sorted(self.at_work.items()))
        clients = f"{done}, now {at_work}" if at_work else done
        parts = (place, self._left(), clients, losses if len(self.at_work) == 1 else "")
        columns = shutil.get_terminal_size().columns
        self.stream.write("\r\x1b[2K" + printable("  ".join(filter(None, parts)))[: columns - 1])
        self.stream.flush()

    def _part(self) -> float:
        """The part of the current round that is done: by the epochs of the last one, in the first round by clients."""
        if self.epochs_per_round:
            return min(1.0, self.epochs_done / self.epochs_per_round)
        return min(1.0, self.turns_done / self.turns) if self.turns else 0.0

    def _bar(self) -> str:
        done = min(1.0, (self.next_round + self._part()) / self.total)
        filled = int(BAR * done)
        return f"[{'#' * filled}{'.' * (BAR - filled)}] {100 * done:.0f} %"

    def _left(self) -> str:
        done = self.played + self._part()
        if not self.played:
            return ""
        seconds = (time.perf_counter() - self.began) / done * (self.total - self.next_round - self._part())
        if seconds < 0.5:
            return ""
        return f"{seconds / 60:.0f} min left" if seconds >= 90 else f"{seconds:.0f} s left"

    def _line(self, text: str) -> None:
        self.printed = time.perf_counter()
        self.stream.write(("\r\x1b[2K" if self.live else "") + printable(text) + "\n")
        self.stream.flush()
