"""The printed output: one table per case, then machine and versions."""

import contextlib
import importlib.metadata
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from asfedbridge import __version__
from contender import Case

LIBRARIES = ("torch", "numpy", "numba", "flwr", "ray", "spikingjelly", "snntorch", "norse")


def machine() -> dict[str, Any]:
    model = platform.processor()
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return {"processor": model, "cores": os.cpu_count(), "platform": platform.platform()}


def versions() -> dict[str, str]:
    found = {"asfedbridge": __version__, "python": platform.python_version()}
    for name in LIBRARIES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def describe(case: Case) -> str:
    return ", ".join(f"{key}={value}" for key, value in case.items() if key != "quick")


def duration(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def size(value: float) -> str:
    return f"{value / 2**20:.1f} MB"


def render(result: Mapping[str, Any], markdown: bool = False) -> str:
    lines = [f"{result['benchmark']}: {result['claim']}", ""]
    for case in result["cases"]:
        lines += [describe(case["case"]), *_table(case, markdown), ""]
        lines += [f"{name}: {value:.3g}" for name, value in case["derived"].items()]
        lines += [""] if case["derived"] else []
    one = result["machine"]
    clock = ", processor time" if result["clock"] == "cpu" else ""
    lines.append(
        f"{one['processor']}, {one['cores']} cores, {result['threads']} threads, n = {result['repeats']}{clock}"
    )
    lines.append(", ".join(f"{name} {version}" for name, version in result["versions"].items()))
    if result["quick"]:
        lines.append("--quick: sizes are too small for conclusions")
    return "\n".join(lines)


def _table(case: Mapping[str, Any], markdown: bool) -> list[str]:
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
    if markdown:
        lines = [f"| {' | '.join(row)} |" for row in rows]
        return ["", lines[0], "|---" * len(rows[0]) + "|", *lines[1:]]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _difference(row: Mapping[str, Any]) -> str:
    gaps = row.get("difference", {}).items()
    return ", ".join(f"{part} differs" if gap is None else f"{part} {gap:.2g}" for part, gap in gaps)


def _remarks(row: Mapping[str, Any]) -> str:
    words = [f"{name} {size(v) if name.endswith('bytes') else v}" for name, v in row.get("facts", {}).items()]
    words += [f"peak {kind} {size(v)}" for kind, v in row.get("memory", {}).items() if v is not None]
    words += [row["differs"]] if "differs" in row else []
    return ", ".join(words)
