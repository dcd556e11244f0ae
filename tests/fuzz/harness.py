"""A target: valid objects, a way to mutate and read them, and what may come of it.

Two outcomes are good. ``refused``: one line that names the thing, by an error that its caller expects. ``harmless``:
what was read is legitimate; each target says what that means. Everything else is a bug and raises.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tests.fuzz.mutations import Steps, draw_steps

Verdict = Literal["refused", "harmless"]
Attempt = Callable[[Steps], Verdict]
LONGEST = 2000  # characters of a message


@dataclass(frozen=True)
class Target:
    name: str
    many: int  # mutations of the long version; a fiftieth of them, but not many, in the short one
    prepare: Callable[[Path], Attempt]

    @property
    def few(self) -> int:
        return min(150, max(30, self.many // 50))


@dataclass
class Figures:
    counts: dict[str, int] = field(default_factory=lambda: {"refused": 0, "harmless": 0})
    seconds: float = 0.0

    @property
    def mutations(self) -> int:
        return sum(self.counts.values())


def judge(
    read: Callable[[], Any], legitimate: Callable[[Any], None], errors: tuple[type[Exception], ...], *named: str
) -> Verdict:
    """``named``: words of which a refusal must hold one."""
    try:
        found = read()
    except errors as error:
        check_line(str(error), *named)
        return "refused"
    legitimate(found)
    return "harmless"


def check_line(text: str, *named: str) -> None:
    assert text, "a refusal without a word"
    assert len(text.splitlines()) == 1, f"more than one line: {text!r}"
    assert len(text) <= LONGEST, f"{len(text)} characters"
    assert not named or any(word in text for word in named), f"{text!r} names none of {named}"


def fuzz(attempt: Attempt, count: int) -> Figures:
    """Mutations 0 .. ``count`` - 1. One that fails is shown with its number and with as few steps as make it fail."""
    figures = Figures()
    begin = time.process_time()
    for number in range(count):
        steps = draw_steps(number)
        try:
            figures.counts[attempt(steps)] += 1
        except Exception as error:
            error.add_note(f"mutation {number}: {shrink(attempt, steps)}")
            raise
    figures.seconds = time.process_time() - begin
    return figures


def shrink(attempt: Attempt, steps: Steps) -> Steps:
    for left_out in range(len(steps)):
        fewer = steps[:left_out] + steps[left_out + 1 :]
        try:
            if fewer:
                attempt(fewer)
        except Exception:
            return shrink(attempt, fewer)
    return steps
