"""Mutated payloads, checkpoints and data files: each is refused in one line, or what was read is legitimate.

`pytest tests/fuzz --exhaustive -s` plays all of them and prints the figures of docs/reliability.md.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fuzz import folders, sets, wire
from tests.fuzz.harness import Figures, Target, fuzz

TARGETS = [*wire.TARGETS, *folders.TARGETS, *sets.TARGETS]
LONG = 100_000


@pytest.fixture(scope="module")
def table() -> Iterator[dict[str, Figures]]:
    rows: dict[str, Figures] = {}
    yield rows
    print("\n| target | mutations | refused | harmless | CPU seconds |\n|---|---:|---:|---:|---:|")
    for name, f in rows.items():
        print(f"| {name} | {f.mutations} | {f.counts['refused']} | {f.counts['harmless']} | {f.seconds:.0f} |")
    print(f"| all | {sum(f.mutations for f in rows.values())} | | | {sum(f.seconds for f in rows.values()):.0f} |")


def play(target: Target, count: int, folder: Path, table: dict[str, Figures]) -> None:
    figures = table[target.name] = fuzz(target.prepare(folder), count)
    assert figures.mutations == count
    assert figures.counts["refused"] > 0
    if count == target.many:
        assert figures.counts["harmless"] > 0 or "checked" in target.name


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_a_few(target: Target, tmp_path: Path, table: dict[str, Figures]) -> None:
    play(target, target.few, tmp_path, table)


@pytest.mark.exhaustive
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_many(target: Target, tmp_path: Path, table: dict[str, Figures]) -> None:
    play(target, target.many, tmp_path, table)


def test_there_are_enough() -> None:
    assert sum(target.many for target in TARGETS) >= LONG
