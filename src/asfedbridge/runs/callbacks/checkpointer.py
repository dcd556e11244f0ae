"""Writes ``checkpoint/`` and ``snapshots/`` every ``checkpoint_every`` and ``snapshot_every`` rounds."""

import time
from collections.abc import Mapping, Sequence

from asfedbridge.core.task import Round
from asfedbridge.engines import checkpoint
from asfedbridge.engines.loop import Engine
from asfedbridge.runs.callback import Callback, Run
from asfedbridge.runs.folder import RunFolder
from asfedbridge.runs.records import RoundRecord


class Checkpointer(Callback):
    """Must come after the recorder: a checkpoint holds the checksum of the records up to it.

    ``began``: the start time by ``time.perf_counter``, minus the duration of the run before it was resumed.
    """

    def __init__(
        self, folder: RunFolder, engine: Engine, identity: Mapping[str, str], began: float, keep: int = 1
    ) -> None:
        self._folder, self._engine, self._identity, self._began = folder, engine, identity, began
        self._keep = keep
        self._saved = 0  # next round of the newest checkpoint of this process

    def on_round_end(self, run: Run, rnd: Round, records: Sequence[RoundRecord]) -> None:
        played, spec = rnd.index + 1, run.spec
        snapshot = spec.snapshot_every > 0 and played % spec.snapshot_every == 0
        if not rnd.closing and (snapshot or played % spec.checkpoint_every == 0 or played == rnd.total):
            self._save(run, played, snapshot)

    def save(self, run: Run, rnd: Round) -> None:
        """Write the checkpoint of the round in which the run ends, unless it is already written."""
        if not rnd.closing and self._saved != rnd.index + 1:
            self._save(run, rnd.index + 1, snapshot=False)

    def _save(self, run: Run, played: int, snapshot: bool) -> None:
        checkpoint.save(
            self._folder.checkpoints,
            played,
            run.server,
            self._engine,
            self._identity,
            seconds=time.perf_counter() - self._began,
            aside=self._folder.snapshots if snapshot else None,
            records=self._folder.records_sha256(),
            after=self._folder.unflushed(),
            keep=self._keep,
        )
        self._saved = played
