"""Time contenders side by side: each in a process of its own, all alive, one at work.

Own processes, so that one library's import, allocator setting or thread pool neither helps nor hurts another. They
take turns (A B C, then C B A, ...) so that a machine that slows down slows everybody down; therefore the repeats of a
round are paired, and the ratio shown is the median of the per-repeat ratios. Before anything is timed, every
contender's answer is compared with that of the contender it claims to equal; a difference ends the script with 1.

A script states a ``Benchmark`` and ends in ``sys.exit(main(BENCHMARK))``. A contender is named, not passed: its child
process runs the same script, finds the contender by name and builds it there.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from child import FOLLOW, SCRATCH, follow_stdin, serve
from contender import Answer, Benchmark, Case, Contender, Unavailable, Work
from tables import describe, machine, render, versions

__all__ = ["Answer", "Benchmark", "Case", "Contender", "Unavailable", "Work", "main", "paired_ratios"]

PAUSE = 0.02  # seconds before a turn: the threads of whoever worked last stop spinning
LIMIT = 1800.0  # seconds a child may take for one request, building and compiling included


def paired_ratios(seconds: Sequence[float], baseline: Sequence[float]) -> list[float]:
    """Repeat by repeat: what slowed both down divides out."""
    return [mine / other for mine, other in zip(seconds, baseline, strict=True)]


def spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def turns(names: Sequence[str], repeats: int) -> Iterator[list[str]]:
    """Whose turn it is, repeat by repeat: forwards, then backwards, and each time somebody else begins."""
    for repeat in range(repeats):
        start = (repeat // 2) % len(names)
        order = [*names[start:], *names[:start]]
        yield order if repeat % 2 == 0 else order[::-1]


def largest_difference(mine: Answer, theirs: Answer) -> dict[str, float]:
    """Per part of the answer; infinite where there is no number for it: a shape, a text, a part only one side has."""
    found = {}
    for part in sorted(mine.keys() | theirs.keys()):
        if part in mine and part in theirs and np.array_equal(mine[part], theirs[part]):
            found[part] = 0.0
        elif (
            part not in mine
            or part not in theirs
            or mine[part].shape != theirs[part].shape
            or mine[part].dtype.kind == "U"
        ):
            found[part] = float("inf")
        else:
            gap = np.abs(mine[part].astype(np.float64) - theirs[part].astype(np.float64)).max()
            found[part] = float(gap) if np.isfinite(gap) else float("inf")
    return found


class Stopped(Exception):
    """A contender gave no number, and why."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Child:
    def __init__(self, benchmark: Benchmark, contender: Contender, case: Case, threads: int, scratch: str) -> None:
        threads = contender.threads or threads
        env = {"OMP_NUM_THREADS": str(threads), "NUMBA_NUM_THREADS": str(threads), "TMPDIR": scratch, SCRATCH: scratch}
        if case.get("quick"):
            env["OMP_WAIT_POLICY"] = "PASSIVE"  # tests share the machine: threads that spin would wait for each other
        request = {"contender": contender.name, "case": case, "threads": threads}
        # What libraries say matters only when something goes wrong.
        self.noise = tempfile.TemporaryFile()  # noqa: SIM115  closed in end()
        self.process = subprocess.Popen(
            [sys.executable, benchmark.script, "--child", json.dumps(request)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.noise,
            env=os.environ | env | dict(contender.env),
            start_new_session=True,  # Ctrl-C is for the parent, which then ends each child with its own children
        )

    def ask(self, *words: str) -> dict[str, Any]:
        assert self.process.stdin
        try:
            self.process.stdin.write(json.dumps(words).encode() + b"\n")
            self.process.stdin.flush()
            reply: dict[str, Any] = json.loads(self._line())
        except (BrokenPipeError, json.JSONDecodeError):
            raise Stopped("failed", f"its process ended with {self.process.wait(10)}: {self._last_words()}") from None
        for status in ("unavailable", "failed"):
            if status in reply:
                raise Stopped(status, reply[status])
        return reply

    def _line(self) -> bytes:
        assert self.process.stdout
        line, end = b"", time.monotonic() + LIMIT
        while not line.endswith(b"\n"):
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                raise Stopped("failed", f"no answer within {LIMIT:g} s")
            chunk = os.read(self.process.stdout.fileno(), 65536)
            if not chunk:
                break
            line += chunk
        return line

    def _last_words(self) -> str:
        self.noise.seek(0)
        lines = self.noise.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "without a word")

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.noise):
            if pipe:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


def race(benchmark: Benchmark, case: Case, repeats: int, threads: int, say: Callable[[str], None]) -> dict[str, Any]:
    """One case: build, warm up, compare, time in turns, measure memory. Returns the case's part of the JSON."""
    contenders = {c.name: c for c in benchmark.contenders(case)}
    rows: dict[str, dict[str, Any]] = {name: {"name": name, "status": "ok"} for name in contenders}
    children: dict[str, Child] = {}
    scratch = tempfile.TemporaryDirectory(
        prefix="asfedbridge-bench-", ignore_cleanup_errors=True
    )  # children are killed and cannot tidy up

    def ask(name: str, *words: str) -> dict[str, Any]:
        """An answer, or nothing and one contender fewer."""
        try:
            return children[name].ask(*words)
        except Stopped as stopped:
            rows[name] |= {"status": stopped.status, "reason": str(stopped)}
            children.pop(name).end()
            return {}

    try:
        for name, contender in contenders.items():
            missing = [module for module in contender.needs if importlib.util.find_spec(module) is None]
            if contender.skip or missing:
                status = "skipped" if contender.skip else "not installed"
                rows[name] |= {"status": status, "reason": contender.skip or f"needs {', '.join(missing)}"}
                continue
            children[name] = Child(benchmark, contender, case, threads, scratch.name)
        for name in list(children):
            say(f"  {describe(case)}: {name} gets ready")
            for order in ("build", "warm"):
                if name in children:
                    ask(name, order)
        compare(benchmark, contenders, scratch.name, children, rows, ask)
        seconds: dict[str, list[float]] = {name: [] for name in children}
        for number, turn in enumerate(turns(list(children), repeats) if children else [], 1):
            say(f"  {describe(case)}: repeat {number} of {repeats}")
            for name in turn:
                time.sleep(PAUSE)
                if name in children and "seconds" in (reply := ask(name, "time")):
                    seconds[name].append(reply["seconds"])
        for name in list(children):
            rows[name]["facts"] = ask(name, "facts")
            if benchmark.memory and name in children:
                rows[name]["memory"] = ask(name, "memory")
    finally:
        for child in children.values():
            child.end()
        scratch.cleanup()
    alive = {name: values for name, values in seconds.items() if name in children}
    for name, values in alive.items():
        rows[name] |= {"n": len(values), "seconds": values, **spread(values)}
        if benchmark.baseline in alive:
            rows[name]["ratio"] = spread(paired_ratios(values, alive[benchmark.baseline]))
    derived = benchmark.derive(case, rows) if benchmark.derive else {}
    return {"case": case, "baseline": benchmark.baseline, "contenders": list(rows.values()), "derived": derived}


def compare(
    benchmark: Benchmark,
    contenders: Mapping[str, Contender],
    folder: str,
    children: Mapping[str, Child],
    rows: dict[str, dict[str, Any]],
    ask: Callable[..., dict[str, Any]],
) -> None:
    """Write into each row how far its answer is from the one it must equal, and whether that is equal."""
    files = {}
    for number, name in enumerate(list(children)):  # a copy: a child that fails is taken out
        file = Path(folder, f"{number}.npz")
        if ask(name, "answer", str(file)).get("given"):
            files[name] = file
    for name, file in files.items():
        contender = contenders[name]
        like = contender.like or benchmark.baseline
        if like == name or like not in files:
            continue
        with np.load(file) as mine, np.load(files[like]) as theirs:
            gaps = largest_difference(dict(mine), dict(theirs))
        equal = all(gap <= benchmark.tolerance.get(part, 0.0) for part, gap in gaps.items())
        shown = {part: gap if gap < float("inf") else None for part, gap in gaps.items()}  # JSON has no infinity
        rows[name] |= {"like": like, "difference": shown, "equal": equal}
        if contender.differs:
            rows[name]["differs"] = contender.differs


def mismatches(cases: Sequence[Mapping[str, Any]]) -> list[str]:
    return [
        f"{row['name']} ({describe(case['case'])}) differs from {row['like']}: {row['difference']}"
        for case in cases
        for row in case["contenders"]
        if row.get("equal") is False and "differs" not in row
    ]


def main(benchmark: Benchmark, argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=benchmark.claim)
    parser.add_argument("--repeats", type=int, metavar="N", help="timed repeats (default: 5; with --quick: 2)")
    parser.add_argument("--threads", type=int, metavar="N", help="threads per contender (default: all cores)")
    parser.add_argument("--case", type=int, metavar="K", help="only the K-th case (default: all)")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does it run, not how fast")
    parser.add_argument("--json", action="store_true", help="only the final line of JSON on stdout, the rest on stderr")
    parser.add_argument("--markdown", action="store_true", help="tables for a page of docs/")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    benchmark.options(parser)
    args = parser.parse_args(argv)
    if args.child:
        serve(benchmark, json.loads(args.child))
    if args.repeats is not None and args.repeats < 1:
        parser.error("--repeats: give at least 1")
    if args.case is not None and not 1 <= args.case <= len(benchmark.cases(args)):
        parser.error(f"--case {args.case}: give 1 to {len(benchmark.cases(args))}")
    if os.environ.get(FOLLOW):
        follow_stdin()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # through `finally`, like Ctrl-C
    repeats = args.repeats or (2 if args.quick else 5)
    threads = args.threads or len(os.sched_getaffinity(0))
    say = progress(sys.stderr)
    try:
        cases = [race(benchmark, case, repeats, threads, say) for case in planned(benchmark, args)]
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    say("")
    wrong = mismatches(cases)
    failed = [r for case in cases for r in case["contenders"] if r["status"] == "failed"]
    result = {
        "benchmark": benchmark.name,
        "claim": benchmark.claim,
        "quick": args.quick,
        "repeats": repeats,
        "threads": threads,
        "machine": machine(),
        "versions": versions(),
        "equal": not wrong,
        "cases": cases,
    }
    print(render(result, args.markdown), file=sys.stderr if args.json else sys.stdout)
    for line in wrong:
        print(f"not equal: {line}", file=sys.stderr)
    print(json.dumps(result))
    return 1 if wrong or failed else 0


def planned(benchmark: Benchmark, args: argparse.Namespace) -> list[Case]:
    cases = [case | {"quick": True} if args.quick else case for case in benchmark.cases(args)]
    return cases if args.case is None else cases[args.case - 1 : args.case]


def progress(stream: IO[str]) -> Callable[[str], None]:
    """One line that rewrites itself; silent where nobody looks."""

    def say(text: str) -> None:
        if stream.isatty():
            print(f"\r{text:<100.100}\r", end="", file=stream, flush=True)

    return say
