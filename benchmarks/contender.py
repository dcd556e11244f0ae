"""The definition of a benchmark: its contenders, its cases, and which results must be equal."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

Case = dict[str, Any]  # the parameters of one table of a script
Answer = dict[str, np.ndarray]


class Unavailable(Exception):
    """Raised by a contender that cannot be built on this machine, which is not a failure; the message says why."""


@dataclass
class Work:
    """One contender, built in its child process."""

    step: Callable[[], object]  # the timed function; called once before, to warm up
    answer: Callable[[], Answer] | None = None  # its result, requested after the warm-up
    inner: int = 1  # steps per repeat; seconds are given per step
    scale: float = 1.0  # multiplies the seconds, if ``step`` does more or less than one step's work
    facts: Callable[[], dict[str, Any]] = dict  # further facts for the table, such as layout or bytes


@dataclass(frozen=True)
class Contender:
    name: str
    make: Callable[[Case], Work]
    needs: Sequence[str] = ()  # modules; if one is missing, the contender is "not installed"
    env: Mapping[str, str] = field(default_factory=dict)
    threads: int | None = None  # instead of --threads
    like: str | None = None  # the contender whose answer it must equal; default: the baseline
    differs: str = ""  # why its answer cannot be equal; the difference is then shown, but allowed
    skip: str = ""  # why it is skipped


@dataclass(frozen=True)
class Benchmark:
    script: str  # __file__
    claim: str
    baseline: str
    cases: Callable[[argparse.Namespace], list[Case]]
    contenders: Callable[[Case], list[Contender]]
    tolerance: Mapping[str, float] = field(default_factory=dict)  # by part of the answer; default: equal bits
    memory: bool = False  # also measure the peak memory of one step
    threads: int | None = None  # per contender, unless --threads is given; default: all cores
    options: Callable[[argparse.ArgumentParser], object] = lambda parser: None
    derive: Callable[[Case, dict[str, dict[str, Any]]], dict[str, float]] | None = (
        None  # further numbers from a case's results
    )

    @property
    def name(self) -> str:
        return Path(self.script).stem
