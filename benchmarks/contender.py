"""What a benchmark script states: who takes part, on which cases, and what must come out equal."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

Case = dict[str, Any]  # one line of parameters: what changes between two tables of a script
Answer = dict[str, np.ndarray]


class Unavailable(Exception):
    """Raised by a contender that cannot be built here, which is nobody's mistake; the message says why."""


@dataclass
class Work:
    """One contender, built in its child."""

    step: Callable[[], object]  # what is timed; called once before, to warm up
    answer: Callable[[], Answer] | None = None  # what it computed, asked for after the warm-up
    inner: int = 1  # steps per repeat; seconds are given per step
    facts: Callable[[], dict[str, Any]] = dict  # what else there is to say at the end: layout, bytes


@dataclass(frozen=True)
class Contender:
    name: str
    make: Callable[[Case], Work]
    needs: Sequence[str] = ()  # modules; where one is missing the contender is "not installed"
    env: Mapping[str, str] = field(default_factory=dict)
    threads: int | None = None  # instead of --threads
    like: str | None = None  # whose answer it must give; the baseline's unless named
    differs: str = ""  # why its answer cannot be equal: the difference is then shown, not enforced
    skip: str = ""  # why it does not take part this time


@dataclass(frozen=True)
class Benchmark:
    script: str  # __file__
    claim: str
    baseline: str
    cases: Callable[[argparse.Namespace], list[Case]]
    contenders: Callable[[Case], list[Contender]]
    tolerance: Mapping[str, float] = field(default_factory=dict)  # by part of the answer; equal bits where not named
    memory: bool = False  # also measure the peak memory of one step
    options: Callable[[argparse.ArgumentParser], None] = lambda parser: None
    derive: Callable[[Case, dict[str, dict[str, Any]]], dict[str, float]] | None = None  # more from a case's results

    @property
    def name(self) -> str:
        return Path(self.script).stem
