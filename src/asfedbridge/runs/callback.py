"""The ``Callback`` class that users subclass, the ``Run`` that callbacks receive, and the registry of callbacks.

docs/callbacks.md shows how to write one.
"""

import inspect
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from asfedbridge.core.errors import BadInput, CallbackFailed, nearest
from asfedbridge.core.payload import Payload
from asfedbridge.core.task import ClientInfo, Round, Upload
from asfedbridge.engines.failures import Event
from asfedbridge.runs.records import EventRecord, RoundRecord, event_records
from asfedbridge.runs.spec import Spec
from asfedbridge.runs.summary import Summary
from asfedbridge.runs.toml import parse_assignment

if TYPE_CHECKING:
    from asfedbridge.runs.setting import Setting

C = TypeVar("C", bound=Callable[..., "Callback"])


@dataclass
class Run:
    """A run in progress, as callbacks see it. Treat its attributes as read-only; only ``stop`` changes the run."""

    spec: Spec
    setting: "Setting"  # task, clients and their shards
    path: Path  # the run folder
    next_round: int = 0  # the first round of this process; above 0 in a resumed run
    played: int = 0  # rounds so far, without the closing visit
    records: list[RoundRecord] = field(default_factory=list)  # one per client and round, of all rounds so far
    participants: Sequence[ClientInfo] = ()  # clients of the last round that returned an upload
    uploads: Mapping[int, Upload] = field(default_factory=dict)  # of the last round, by client
    server: Payload = field(default_factory=dict)  # the server's state after the last round
    stopped: str = ""  # the reason for stopping early, or empty

    def stop(self, reason: str) -> None:
        """End the run after the current round. In ``on_run_begin`` of a resumed run, end it before the next round.

        The state is saved, clients receive the last aggregate, and ``summary.json`` gets an entry ``stopped_early``.
        """
        self.stopped = self.stopped or reason


class Callback:
    """Observes a run. Every method does nothing; override those you need.

    Callbacks run in the server's process, in the order in which they are given. If one of them raises an exception, the
    round in progress is finished and saved, and the run ends with ``CallbackFailed``.
    """

    def on_wait(self, reason: str) -> None:
        """The run waits: before it begins, for something that takes long, or for a suspended worker process."""

    def on_run_begin(self, run: Run) -> None:
        """Called before the first round of this process. ``run.records`` holds the earlier rounds of a resumed run."""

    def on_turn_begin(self, run: Run, client: ClientInfo) -> None:
        """A client begins its turn in a round: it has received the payload. Not called on the engine ``flower``."""

    def on_turn_end(self, run: Run, client: ClientInfo) -> None:
        """A client has returned its upload. On the engine ``pool`` the turns of several clients overlap."""

    def on_epoch_end(
        self, run: Run, client: ClientInfo, stage: str, epoch: int, epochs: int, losses: Mapping[str, float]
    ) -> None:
        """A client has finished an epoch of a training stage. Not called on the engine ``flower``."""

    def on_round_end(self, run: Run, rnd: Round, records: Sequence[RoundRecord]) -> None:
        """A round is recorded and, if one was due, its checkpoint is written. ``rnd.closing``: the closing visit."""

    def on_event(self, run: Run, event: EventRecord) -> None:
        """A client behind a network was absent, lost, refused ...: ``round``, ``event``, ``client`` and ``reason``."""

    def on_run_end(self, run: Run, summary: Summary) -> None:
        """The run is complete and ``summary.json`` is written."""

    def on_failure(self, run: Run, error: BaseException) -> None:
        """The run ends without a summary, by an error or Ctrl-C (KeyboardInterrupt). Release resources here."""


class CallbackList:
    """Calls the callbacks of a run in order. Those of ``engine`` come first, and their errors end the run at once.

    The first exception of a user's callback is kept until the round is saved. That callback is then called only for
    ``on_failure``.
    """

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self.users = list(callbacks)
        self.engine: Sequence[Callback] = ()
        self.run: Run | None = None
        self._failed: dict[int, CallbackFailed] = {}  # by the callback's place in ``users``

    def wait(self, reason: str) -> None:
        self._call("on_wait", reason)

    def begin(self, run: Run, engine: Sequence[Callback]) -> None:
        self.run, self.engine = run, engine
        self._call("on_run_begin", run)
        self.check()

    def turn(self, client: ClientInfo, ended: bool) -> None:
        self._call("on_turn_end" if ended else "on_turn_begin", self.run, client)

    def epoch(self, client: ClientInfo, stage: str, epoch: int, epochs: int, losses: Mapping[str, float]) -> None:
        self._call("on_epoch_end", self.run, client, stage, epoch, epochs, losses)

    def round(self, rnd: Round, records: Sequence[RoundRecord]) -> None:
        self._call("on_round_end", self.run, rnd, records)

    def event(self, rnd: Round, event: Event) -> None:
        for record in event_records(rnd, [event]):
            self._call("on_event", self.run, record)

    def end(self, summary: Summary) -> None:
        self._call("on_run_end", self.run, summary)
        self.check()

    def abandon(self, error: BaseException) -> None:
        """Tell the callbacks that the run ends with ``error``; their own exceptions do not replace it."""
        if self.run:
            self._call("on_failure", self.run, error)

    @property
    def failed(self) -> bool:
        return bool(self._failed)

    def check(self) -> None:
        """Raise the first exception of a callback, if there was one."""
        for failure in self._failed.values():
            raise failure

    def _call(self, name: str, *args: Any) -> None:
        complete = name == "on_run_end" or (name == "on_round_end" and args[1].closing)
        for callback in self.engine:
            getattr(callback, name)(*args)
        for place, callback in enumerate(self.users):
            if place in self._failed and name != "on_failure":
                continue
            try:
                getattr(callback, name)(*args)
            except Exception as error:
                if name == "on_run_begin" and isinstance(error, BadInput):
                    raise  # nothing is computed yet, and the user needs the message unchanged
                failure = CallbackFailed(_explain(callback, name, error, complete))
                failure.__cause__ = error
                self._failed.setdefault(place, failure)


def _explain(callback: Callback, name: str, error: Exception, complete: bool) -> str:
    """One line with the callback, the method, the exception, its place, and the state of the run."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{Path(frames[-1].filename).name}, line {frames[-1].lineno}"
    why = " ".join(f"{type(error).__name__}: {error}".split())
    left = "the run is complete" if complete else "completed rounds are saved; resume the run to continue"
    return f"callback {type(callback).__name__} failed in {name} ({why}; {where}); {left}"


CALLBACKS: dict[str, Callable[..., Callback]] = {}


def register_callback(name: str) -> Callable[[C], C]:
    """Decorator: register a class for ``asfedbridge run --callback NAME``."""

    def enter(make: C) -> C:
        known = CALLBACKS.get(name)
        if not name or set(name) & set(":,;= "):
            raise ValueError(
                f"invalid callback name '{name}': it must not be empty or contain spaces or any of : , ; ="
            )
        if known and getattr(known, "__qualname__", "") != getattr(make, "__qualname__", ""):
            raise ValueError(f"callback '{name}' is already registered; choose another name")
        CALLBACKS[name] = make
        return make

    return enter


def known_callbacks() -> Mapping[str, Callable[..., Callback]]:
    """All callbacks by name, including those of the library."""
    import asfedbridge.runs.callbacks  # noqa: F401  registers them

    return CALLBACKS


def make_callback(text: str) -> Callback:
    """A callback from ``NAME`` or ``NAME:key=value,...``, as on the command line."""
    known = known_callbacks()
    name, _, rest = text.partition(":")
    if name not in known:
        raise BadInput(f"callback={text}: unknown callback '{name}'{nearest(name, known)}")
    make = known[name]
    options = dict(parse_assignment(word) for word in rest.split(",") if word.strip())
    fields = list(inspect.signature(make).parameters)
    for key in options:
        if key not in fields:
            raise BadInput(f"callback={text}: {name} has no option '{key}'{nearest(key, fields)}")
    try:
        return make(**options)
    except TypeError as error:  # an option without a default is missing
        raise BadInput(f"callback={text}: {error}") from None
