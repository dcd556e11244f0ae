"""A table with one row per run: the settings in which it differs from the others, its folder and its results."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from asfedbridge.core import table_columns
from asfedbridge.report.comparison import IGNORED_FIELDS, IN_TITLE
from asfedbridge.report.settings import METHOD, Fields, read_fields
from asfedbridge.report.statistics import group_title
from asfedbridge.report.tables import Rows, Titled, decimals, name_data, name_split
from asfedbridge.runs import Summary

MAX_SETTINGS = 8  # columns of settings; a folder of unrelated runs differs in more


def run_table(found: Mapping[Path, Summary]) -> Titled:
    """Settings in which runs differ are columns; those that all share are in the note."""
    summaries, folders = list(found.values()), list(found)
    texts: dict[str, Callable[[Summary], str]] = {"data": name_data, "split": name_split, "seed": lambda s: str(s.seed)}
    texts |= {"point": lambda s: s.point, "BN": lambda s: s.bn_buffers}
    columns = {title: [text(s) for s in summaries] for title, text in texts.items()}
    differing = {title: cells for title, cells in columns.items() if len(set(cells)) > 1}
    settings = differing_settings([read_fields(folder) for folder in folders], [s.method for s in summaries])
    shown = dict(list(settings.items())[:MAX_SETTINGS])
    first = {title: cells for title, cells in differing.items() if title in ("data", "split")}
    last = {title: cells for title, cells in differing.items() if title in ("point", "BN")}
    if any(s.stopped_early for s in summaries):
        last["rounds played"] = [f"{s.course}, stopped early" if s.stopped_early else s.course for s in summaries]
    several = len(summaries) > 1
    groups = sorted({g for s in summaries for g in s.accuracy}, key=lambda g: (g == "all", g))
    results = {group_title(g): [decimals(s.accuracy.get(g)) for s in summaries] for g in groups}
    results["best all"] = [decimals((s.best or {}).get("all")) for s in summaries]
    table = {"method": [s.method for s in summaries], **first, **shown}
    table |= {"seed": differing["seed"]} if "seed" in differing else {}
    table |= {"folder": _names(folders)} if several else {}
    table |= {**results, **_added(summaries, groups), **last}
    table["payload MB"] = [f"{s.payload_mb:.2f}" for s in summaries]
    table["minutes"] = [f"{s.wall_seconds / 60:.1f}" for s in summaries]
    rows: Rows = [list(table), *map(list, zip(*table.values(), strict=True))]
    shared = {title: cells[0] for title, cells in columns.items() if title not in differing}
    return Titled("", rows, _explain(shared, several, list(settings)[MAX_SETTINGS:]))


def differing_settings(fields: Sequence[Fields], methods: Sequence[str]) -> dict[str, list[str]]:
    """Values of the keys in which runs differ; fields of a method are compared among the runs of that method."""
    hidden = {*IGNORED_FIELDS, *IN_TITLE, "method.name"}
    found: dict[str, list[str]] = {}
    for key in dict.fromkeys(key for table in fields for key in table if key not in hidden):
        values: dict[str, set[str]] = {}
        for table, method in zip(fields, methods, strict=True):
            values.setdefault(method if key.startswith(METHOD) else "", set()).add(_text(table.get(key)))
        if any(len(entries) > 1 for entries in values.values()):
            found[key.removeprefix(METHOD)] = [_text(table.get(key)) for table in fields]
    return found


def run_records(found: Mapping[Path, Summary]) -> Rows:
    """The same for programs: every setting that differs, and numbers without rounding."""
    summaries, folders = list(found.values()), list(found)
    settings = differing_settings([read_fields(folder) for folder in folders], [s.method for s in summaries])
    groups = sorted({g for s in summaries for g in s.accuracy}, key=lambda g: (g == "all", g))
    table: dict[str, list[str]] = {
        "folder": [str(folder) for folder in folders],
        "method": [s.method for s in summaries],
        "data": [s.data for s in summaries],
        "split": [name_split(s) for s in summaries],
        "seed": [str(s.seed) for s in summaries],
        "rounds": [str(s.rounds) for s in summaries],
        "rounds_played": [str(s.played) for s in summaries],  # fewer if the run was stopped early
        **{key: cells for key, cells in settings.items() if key != "rounds"},
        **{g: [_number(s.accuracy.get(g)) for s in summaries] for g in groups},
        "best_all": [_number((s.best or {}).get("all")) for s in summaries],
    }
    for column in table_columns().values():
        for group in groups if column.by_kind else ["all"]:
            if any(column.key in s.added for s in summaries):
                title = f"{column.key}_{group}"
                table[title] = [_number(s.added.get(column.key, {}).get(group)) for s in summaries]
    table |= {"point": [s.point for s in summaries], "bn_buffers": [s.bn_buffers for s in summaries]}
    table |= {"payload_mb": [_number(s.payload_mb) for s in summaries]}
    table |= {"wall_seconds": [_number(s.wall_seconds) for s in summaries]}
    return [list(table), *map(list, zip(*table.values(), strict=True))]


def _added(summaries: Sequence[Summary], groups: Sequence[str]) -> dict[str, list[str]]:
    """The columns that methods add."""
    found = {}
    for column in table_columns().values():
        for group in groups if column.by_kind else ["all"]:
            if any(column.key in s.added for s in summaries):
                title = f"{column.title} {group_title(group)}" if column.by_kind else column.title
                found[title] = [decimals(s.added.get(column.key, {}).get(group)) for s in summaries]
    return found


def _names(folders: Sequence[Path]) -> list[str]:
    """Folders without the part of the path that they share."""
    absolute = [os.path.abspath(folder) for folder in folders]
    parent = os.path.commonpath([os.path.dirname(name) for name in absolute])
    return [os.path.relpath(name, parent) for name in absolute]


def _explain(shared: Mapping[str, str], several: bool, hidden: Sequence[str]) -> str:
    known = [text for text in (shared.get("data"), shared.get("split")) if text]
    known += [f"seed {shared['seed']}"] if "seed" in shared else []
    known += [f"evaluated at `{shared['point']}`"] if "point" in shared else []
    known += [f"BatchNorm statistics {shared['BN']}"] if "BN" in shared else []
    words = [f"{'All runs: ' if several else ''}{', '.join(known)}."] if known else []
    words += [f"They also differ in {', '.join(hidden)}."] if hidden else []
    return " ".join(words)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ",".join(map(_text, value))
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _number(value: float | None) -> str:
    return "" if value is None else repr(value)
