"""Runs the benchmark scripts of the source checkout, each in its own process."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from asfedbridge.core import BadInput, nearest

SOURCE = Path(__file__).parents[2]
FOLDER = SOURCE.parent / "benchmarks"
MARK = "BENCHMARK = Benchmark("  # only benchmark scripts contain this, their helper modules do not


def find_scripts() -> dict[str, Path]:
    scripts = {p.stem: p for p in sorted(FOLDER.glob("*.py")) if MARK in p.read_text(encoding="utf-8")}
    if not scripts:
        raise BadInput("bench: the benchmarks are in the source repository, not in the installed package; run it there")
    return scripts


def choose_scripts(name: str | None) -> dict[str, Path]:
    """The script called ``name``, or all scripts."""
    scripts = find_scripts()
    if name is None:
        return scripts
    if name not in scripts:
        raise BadInput(f"bench {name}: unknown benchmark{nearest(name, scripts)}")
    return {name: scripts[name]}


def run_script(path: Path, words: Sequence[str], capture: bool) -> tuple[int, dict[str, Any] | None]:
    """Return the exit code and, with ``capture``, the JSON on the last line of stdout."""
    # The script ends when its stdin closes (benchmarks/child.py). In its own session it does not receive Ctrl-C.
    env = {"ASFEDBRIDGE_BENCH_FOLLOWS_STDIN": "1", "PYTHONPATH": _search_path()}
    process = subprocess.Popen(
        [sys.executable, str(path), *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE if capture else None,
        env=os.environ | env,
        start_new_session=True,
    )
    try:
        if not capture:
            return process.wait(), None
        assert process.stdout
        lines = process.stdout.read().splitlines()
        return process.wait(), json.loads(lines[-1]) if lines else None
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()


def _search_path() -> str:
    """Puts this checkout first, so that the script does not import an installed version."""
    return os.pathsep.join([str(SOURCE), *filter(None, [os.environ.get("PYTHONPATH")])])
