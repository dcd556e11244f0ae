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
import ctypes
import importlib.metadata
import importlib.util
import json
import os
import platform
import queue
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NoReturn

import numpy as np

Case = dict[str, Any]  # one line of parameters: what changes between two tables of a script
Answer = dict[str, np.ndarray]

FOLLOW = "ASFEDBRIDGE_BENCH_FOLLOWS_STDIN"  # set by `asfedbridge bench`: end when its side of the pipe closes
LIBRARIES = ("torch", "numpy", "numba", "spikingjelly", "snntorch", "norse", "asfedbridge")
PAUSE = 0.02  # seconds before a turn: the threads of whoever worked last stop spinning
LIMIT = 1800.0  # seconds a child may take for one request, building and compiling included


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


# statistics


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
    """Per part of the answer; infinite where shapes differ or only one side has it."""
    found = {}
    for part in mine.keys() | theirs.keys():
        if part not in mine or part not in theirs or mine[part].shape != theirs[part].shape:
            found[part] = float("inf")
        elif np.array_equal(mine[part], theirs[part]):
            found[part] = 0.0
        else:
            gap = np.abs(mine[part].astype(np.float64) - theirs[part].astype(np.float64)).max()
            found[part] = float(gap) if np.isfinite(gap) else float("inf")
    return found


# the child


def serve(benchmark: Benchmark, request: Mapping[str, Any]) -> NoReturn:
    """Build one contender and do as the parent says, line by line, until its pipe closes."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints must not end up between the replies
    orders = follow_stdin()
    import torch

    torch.set_num_threads(request["threads"])
    work: Work | None = None
    for order, *words in iter(orders.get, None):
        try:
            if order == "build":
                named = {c.name: c for c in benchmark.contenders(request["case"])}
                work = named[request["contender"]].make(request["case"])
                reply: dict[str, Any] = {}
            else:
                assert work
                reply = obey(work, order, words)
        except ImportError as error:
            reply = {"unavailable": f"cannot be imported: {error}"}
        except Exception as error:
            reply = {"failed": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), file=replies, flush=True)
    raise SystemExit


def obey(work: Work, order: str, words: Sequence[str]) -> dict[str, Any]:
    if order == "warm":
        work.step()
        return {}
    if order == "answer":
        np.savez(words[0], **(work.answer() if work.answer else {}))  # type: ignore[arg-type]
        return {"given": work.answer is not None}
    if order == "time":
        begin = time.perf_counter()
        for _ in range(work.inner):
            work.step()
        return {"seconds": (time.perf_counter() - begin) / work.inner}
    if order == "memory":
        return peak_memory(work.step)
    return work.facts()


def follow_stdin() -> "queue.Queue[list[str] | None]":
    """Orders from the parent. When it is gone, however it went, so is this process with all it started."""
    orders: queue.Queue[list[str] | None] = queue.Queue()

    def read() -> None:
        rest = b""
        while chunk := os.read(0, 65536):  # not sys.stdin: a fork must not inherit its lock
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                orders.put(json.loads(line))
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=read, daemon=True).start()
    return orders


def peak_memory(step: Callable[[], object]) -> dict[str, Any]:
    """Bytes one step needs on top of what is there: of the process (Linux), and of torch's CPU allocator.

    Free memory that malloc holds is given back first: otherwise a step that reuses it would seem to need none.
    """
    found: dict[str, Any] = {"torch": allocated_by_torch(step)}
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
        before = process_memory()["VmRSS"]
        step()
        found["process"] = process_memory()["VmHWM"] - before
    return found


def process_memory() -> dict[str, int]:
    """VmRSS, VmHWM and the like of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return {n: int(v.split()[0]) * 1024 for n, _, v in (s.partition(":") for s in lines) if v.endswith(" kB")}


def allocated_by_torch(step: Callable[[], object]) -> int | None:
    """The highest sum of allocations minus releases during a step, from torch.profiler's record."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        step()
    results = getattr(record.profiler, "kineto_results", None)
    if results is None:
        return None
    changes = sorted((e.start_ns(), e.nbytes()) for e in results.events() if e.name() == "[memory]")
    return int(max(np.cumsum([size for _, size in changes]), default=0))


# the parent


class Stopped(Exception):
    """A contender gave no number, and why."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Child:
    def __init__(self, benchmark: Benchmark, contender: Contender, case: Case, threads: int) -> None:
        threads = contender.threads or threads
        request = {"contender": contender.name, "case": case, "threads": threads}
        self.noise = tempfile.TemporaryFile()  # what libraries say matters only when something goes wrong
        self.process = subprocess.Popen(
            [sys.executable, benchmark.script, "--child", json.dumps(request)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.noise,
            env=os.environ | {"OMP_NUM_THREADS": str(threads), "NUMBA_NUM_THREADS": str(threads)} | dict(contender.env),
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
            children[name] = Child(benchmark, contender, case, threads)
        for name in list(children):
            say(f"  {describe(case)}: {name} gets ready")
            for order in ("build", "warm"):
                if name in children:
                    ask(name, order)
        compare(benchmark, contenders, children, rows, ask)
        seconds: dict[str, list[float]] = {name: [] for name in children}
        for number, order in enumerate(turns(list(children), repeats) if children else [], 1):
            say(f"  {describe(case)}: repeat {number} of {repeats}")
            for name in order:
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
    children: Mapping[str, Child],
    rows: dict[str, dict[str, Any]],
    ask: Callable[..., dict[str, Any]],
) -> None:
    """Write into each row how far its answer is from the one it must equal, and whether that is equal."""
    with tempfile.TemporaryDirectory(prefix="asfedbridge-bench-") as folder:
        files = {}
        for number, name in enumerate(list(children)):
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
            rows[name] |= {"like": like, "difference": dict(sorted(gaps.items())), "equal": equal}
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
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does it run, not how fast")
    parser.add_argument("--json", action="store_true", help="the result as one line of JSON on stdout, the rest on stderr")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    benchmark.options(parser)
    args = parser.parse_args(argv)
    if args.child:
        serve(benchmark, json.loads(args.child))
    if args.repeats is not None and args.repeats < 1:
        parser.error("--repeats: give at least 1")
    if os.environ.get(FOLLOW):
        follow_stdin()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # through `finally`, like Ctrl-C
    repeats = args.repeats or (2 if args.quick else 5)
    threads = args.threads or len(os.sched_getaffinity(0))
    say = progress(sys.stderr)
    try:
        cases = [race(benchmark, case, repeats, threads, say) for case in benchmark.cases(args)]
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
    print(render(result), file=sys.stderr if args.json else sys.stdout)
    for line in wrong:
        print(f"not equal: {line}", file=sys.stderr)
    if args.json:
        print(json.dumps(result))
    return 1 if wrong or failed else 0


def progress(stream: IO[str]) -> Callable[[str], None]:
    """One line that rewrites itself; silent where nobody looks."""
    return (lambda text: print(f"\r{text:<100.100}\r", end="", file=stream, flush=True)) if stream.isatty() else str


# what is printed


def machine() -> dict[str, Any]:
    model = platform.processor()
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return {"processor": model, "cores": os.cpu_count(), "platform": platform.platform()}


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def describe(case: Case) -> str:
    return ", ".join(f"{key}={value}" for key, value in case.items())


def duration(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def size(value: float) -> str:
    return f"{value / 2**20:.1f} MB"


def render(result: Mapping[str, Any]) -> str:
    lines = [f"{result['benchmark']}: {result['claim']}", ""]
    for case in result["cases"]:
        lines += [describe(case["case"]), *_table(case), ""]
        lines += [f"{name}: {value:.3g}" for name, value in case["derived"].items()]
        lines += [""] if case["derived"] else []
    one = result["machine"]
    lines.append(f"{one['processor']}, {one['cores']} cores, {result['threads']} threads, n = {result['repeats']}")
    lines.append(", ".join(f"{name} {version}" for name, version in result["versions"].items()))
    if result["quick"]:
        lines.append("--quick: sizes too small to conclude anything from")
    return "\n".join(lines)


def _table(case: Mapping[str, Any]) -> list[str]:
    rows = [["contender", "median", "range", f"time / {case['baseline']}", "n", "largest difference", "remarks"]]
    for row in case["contenders"]:
        if row["status"] != "ok":
            rows.append([row["name"], row["status"], "", "", "", "", row["reason"]])
            continue
        ratio = row.get("ratio")
        rows.append(
            [
                row["name"],
                duration(row["median"]),
                f"{duration(row['min'])} - {duration(row['max'])}",
                f"{ratio['median']:.2f} ({ratio['min']:.2f}-{ratio['max']:.2f})" if ratio else "",
                str(row["n"]),
                _difference(row),
                _remarks(row),
            ]
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _difference(row: Mapping[str, Any]) -> str:
    parts = [f"{part} {gap:.2g}" for part, gap in row.get("difference", {}).items()]
    return ", ".join(parts)


def _remarks(row: Mapping[str, Any]) -> str:
    words = [f"{name} {size(v) if name.endswith('bytes') else v}" for name, v in row.get("facts", {}).items()]
    words += [f"peak {kind} {size(v)}" for kind, v in row.get("memory", {}).items() if v is not None]
    words += [row["differs"]] if "differs" in row else []
    return ", ".join(words)
