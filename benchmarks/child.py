"""The child process: builds one contender and executes the parent's commands; measures time and peak memory."""

import contextlib
import ctypes
import json
import os
import queue
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from contender import Benchmark, Unavailable, Work

FOLLOW = "ASFEDBRIDGE_BENCH_FOLLOWS_STDIN"  # set by `asfedbridge bench`: end when stdin closes
SCRATCH = "ASFEDBRIDGE_BENCH_SCRATCH"  # the folder for temporary files of all children


def serve(benchmark: Benchmark, request: Mapping[str, Any]) -> NoReturn:
    """Execute the parent's commands, one per line, until its pipe closes."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # keeps output of libraries out of the replies
    orders = follow_stdin()
    if torch := sys.modules.get("torch"):  # if imported later, torch reads OMP_NUM_THREADS
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
                reply = execute(work, order, words, time.process_time if request["cpu_time"] else time.perf_counter)
        except Unavailable as error:
            reply = {"unavailable": str(error)}
        except ImportError as error:
            reply = {"unavailable": f"cannot be imported: {error}"}
        except Exception as error:
            reply = {"failed": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), file=replies, flush=True)
    raise SystemExit


def execute(work: Work, order: str, words: Sequence[str], clock: Callable[[], float]) -> dict[str, Any]:
    if order == "warm":
        work.step()
        return {}
    if order == "answer":
        np.savez(words[0], **(work.answer() if work.answer else {}))  # type: ignore[arg-type]
        return {"given": work.answer is not None}
    if order == "time":
        begin = clock()
        for _ in range(work.inner):
            work.step()
        return {"seconds": (clock() - begin) / work.inner * work.scale}
    if order == "memory":
        return peak_memory(work.step)
    return work.facts()


def follow_stdin() -> "queue.Queue[list[str] | None]":
    """Commands from the parent. When it ends for any reason, this process group is killed."""
    orders: queue.Queue[list[str] | None] = queue.Queue()

    def read() -> None:
        rest = b""
        while chunk := os.read(0, 65536):  # not sys.stdin, whose lock a fork would inherit
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                orders.put(json.loads(line))
        if scratch := os.environ.get(SCRATCH):  # a killed parent could not remove it
            shutil.rmtree(scratch, ignore_errors=True)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=read, daemon=True).start()
    return orders


def peak_memory(step: Callable[[], object]) -> dict[str, Any]:
    """Additional bytes that one step needs: of the process (Linux), and of torch's CPU allocator.

    Free memory held by malloc is returned first; otherwise a step that reuses it would seem to need none.
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
    """The maximum of allocations minus releases during a step, from torch.profiler."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        step()
    results = getattr(record.profiler, "kineto_results", None)
    if results is None:
        return None
    changes = sorted((e.start_ns(), e.nbytes()) for e in results.events() if e.name() == "[memory]")
    return int(max(np.cumsum([size for _, size in changes]), default=0))
