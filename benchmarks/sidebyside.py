"""Times contenders side by side, each in its own process; all processes exist at once, but only one works at a time.

Separate processes isolate the imports, allocator settings and thread pools of the libraries. Contenders take turns
(A B C, then C B A, ...), so that a machine that slows down affects all of them. Repeats are therefore paired, and the
ratio shown is the median of the per-repeat ratios. Before the timing, every contender's answer is compared with that of
the contender it must equal; if they differ, the script exits with 1.

A script defines a ``Benchmark`` and ends with ``sys.exit(main(BENCHMARK))``. The child process of a contender runs the
same script, finds the contender by name and builds it.
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

PAUSE = 0.02  # seconds before a turn, in which the threads of the previous contender stop spinning
TIMEOUT = 1800.0  # seconds for one request to a child, including building and compiling


def paired_ratios(seconds: Sequence[float], baseline: Sequence[float]) -> list[float]:
    """One ratio per repeat, which cancels a slowdown of the machine."""
    return [mine / other for mine, other in zip(seconds, baseline, strict=True)]


def spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def turns(names: Sequence[str], repeats: int) -> Iterator[list[str]]:
    """The order of contenders in each repeat: forwards, then backwards, rotated by one every two repeats."""
    for repeat in range(repeats):
        start = (repeat // 2) % len(names)
        order = [*names[start:], *names[:start]]
        yield order if repeat % 2 == 0 else order[::-1]


def largest_difference(mine: Answer, theirs: Answer) -> dict[str, float]:
    """For each part of the answer; infinite for different shapes, different texts and missing parts."""
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
    """A contender gave no result; the message is the reason."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Fork:
    """A child with the imports of this process, as far as ``Child`` uses a Popen."""

    def __init__(self, benchmark: Benchmark, request: Case, env: Mapping[str, str], noise: IO[bytes]) -> None:
        theirs, ours = os.pipe()
        answers, replies = os.pipe()
        self.code: int | None = None
        self.pid = os.fork()
        if not self.pid:
            try:
                os.setsid()
                for number, given in enumerate((theirs, replies, noise.fileno())):
                    os.dup2(given, number)
                os.closerange(3, 1024)  # the pipes of other children, too: each ends with the parent
                os.environ.update(env)
                tempfile.tempdir = None  # as TMPDIR says
                serve(benchmark, request)
            finally:
                os._exit(1)
        os.close(theirs)
        os.close(replies)
        self.stdin, self.stdout = os.fdopen(ours, "wb"), os.fdopen(answers, "rb")

    def wait(self, timeout: float | None = None) -> int:
        if self.code is None:
            self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.code


class Child:
    def __init__(
        self,
        benchmark: Benchmark,
        contender: Contender,
        case: Case,
        threads: int,
        cpu_time: bool,
        scratch: str,
        fork: bool = False,
    ) -> None:
        threads = contender.threads or threads
        env = {"OMP_NUM_THREADS": str(threads), "NUMBA_NUM_THREADS": str(threads), "TMPDIR": scratch, SCRATCH: scratch}
        if case.get("quick"):
            env["OMP_WAIT_POLICY"] = "PASSIVE"  # tests share the machine, and spinning threads would delay each other
        request = {"contender": contender.name, "case": case, "threads": threads, "cpu_time": cpu_time}
        # The output of libraries is only needed for error messages.
        self.noise = tempfile.TemporaryFile()  # noqa: SIM115  closed in end()
        self.process: subprocess.Popen[bytes] | Fork
        if fork:
            self.process = Fork(benchmark, request, env | dict(contender.env), self.noise)
            return
        self.process = subprocess.Popen(
            [sys.executable, benchmark.script, "--child", json.dumps(request)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.noise,
            env=os.environ | env | dict(contender.env),
            start_new_session=True,  # only the parent gets Ctrl-C; it then kills each child with its descendants
        )

    def ask(self, *words: str) -> dict[str, Any]:
        assert self.process.stdin
        try:
            self.process.stdin.write(json.dumps(words).encode() + b"\n")
            self.process.stdin.flush()
            reply: dict[str, Any] = json.loads(self._line())
        except (BrokenPipeError, json.JSONDecodeError):
            raise Stopped("failed", f"its process ended with {self.process.wait(10)}: {self._last_line()}") from None
        for status in ("unavailable", "failed"):
            if status in reply:
                raise Stopped(status, reply[status])
        return reply

    def _line(self) -> bytes:
        assert self.process.stdout
        line, end = b"", time.monotonic() + TIMEOUT
        while not line.endswith(b"\n"):
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                raise Stopped("failed", f"no answer within {TIMEOUT:g} s")
            chunk = os.read(self.process.stdout.fileno(), 65536)
            if not chunk:
                break
            line += chunk
        return line

    def _last_line(self) -> str:
        self.noise.seek(0)
        lines = self.noise.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "no output")

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.noise):
            if pipe:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


def race(
    benchmark: Benchmark,
    case: Case,
    repeats: int,
    threads: int,
    cpu_time: bool,
    say: Callable[[str], None],
    fork: bool = False,
) -> dict[str, Any]:
    """Run one case: build, warm up, compare, time in turns, measure memory. Return its part of the JSON."""
    contenders = {c.name: c for c in benchmark.contenders(case)}
    rows: dict[str, dict[str, Any]] = {name: {"name": name, "status": "ok"} for name in contenders}
    children: dict[str, Child] = {}
    scratch = tempfile.TemporaryDirectory(
        prefix="asfedbridge-bench-", ignore_cleanup_errors=True
    )  # children are killed and cannot remove their files

    def ask(name: str, *words: str) -> dict[str, Any]:
        """The reply; if the contender fails, an empty one, and the contender is removed."""
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
            children[name] = Child(benchmark, contender, case, threads, cpu_time, scratch.name, fork)
        for name in list(children):
            say(f"  {describe(case)}: preparing {name}")
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
    """Add to each row the difference between its answer and the one it must equal, and whether they are equal."""
    files = {}
    for number, name in enumerate(list(children)):  # a copy: ``ask`` removes a child that fails
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
    parser.add_argument(
        "--threads", type=int, metavar="N", help=f"threads per contender (default: {benchmark.threads or 'all cores'})"
    )
    parser.add_argument(
        "--cpu-time", action="store_true", help="processor time instead of wall-clock time, for machines in use"
    )
    parser.add_argument("--case", type=int, metavar="K", help="only the K-th case (default: all)")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, only to check that it runs")
    parser.add_argument("--json", action="store_true", help="only the final line of JSON on stdout, the rest on stderr")
    parser.add_argument("--markdown", action="store_true", help="print tables as Markdown, for docs/")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    # Contenders with this process's imports, for tests of the scripts: seconds less for each of them.
    parser.add_argument("--fork", action="store_true", help=argparse.SUPPRESS)
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
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # runs `finally` blocks, as Ctrl-C does
    repeats = args.repeats or (2 if args.quick else 5)
    threads = args.threads or benchmark.threads or len(os.sched_getaffinity(0))
    say = progress(sys.stderr)
    try:
        cases = [
            race(benchmark, case, repeats, threads, args.cpu_time, say, args.fork) for case in planned(benchmark, args)
        ]
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
        "clock": "cpu" if args.cpu_time else "wall",
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
    """A status line on a terminal; silent elsewhere."""

    def say(text: str) -> None:
        if stream.isatty():
            print(f"\r{text:<100.100}\r", end="", file=stream, flush=True)

    return say
