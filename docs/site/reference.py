"""Generates pages of the site from the code: settings, commands, data sets and the Python API.

MkDocs calls `on_files` (`hooks` in mkdocs.yml). `tests/test_site.py` builds the site strictly.
"""

import argparse
import ast
import dataclasses
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

import asfedbridge
from asfedbridge.cli.parser import build_parser
from asfedbridge.core.method import METHODS
from asfedbridge.core.task import Neuron, Optimiser
from asfedbridge.data.sources.registry import describe
from asfedbridge.methods import DEFAULT
from asfedbridge.runs.fields import describe_fields
from asfedbridge.runs.recipes import RECIPES
from asfedbridge.runs.spec import RANGES, Spec

STUB = Path(asfedbridge.__file__).with_name("__init__.pyi")
# Sections of the Python API and the modules of their names. A name belongs to the first section that matches.
SECTIONS = {
    "Runs": ("runs.api", "runs.federation", "runs.result", "runs.spec"),
    "Trained clients": ("runs.search", "runs.trained"),
    "Callbacks": ("runs.callback",),
    "Exceptions": ("core.errors",),
    "Building blocks": ("",),
}
TABLES: dict[str, type] = {"neuron": Neuron, "optimiser": Optimiser}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    pages = {"settings": settings_page, "commands": commands_page, "data-sets": data_page, "python": python_page}
    for name, write in pages.items():
        files.append(File.generated(config, f"reference/{name}.md", content=write()))
    return files


def settings_page() -> str:
    """Every key of a specification: default, range and meaning; a key without documentation is an error."""
    recipes = {name: recipe(DEFAULT) for name, recipe in RECIPES.items()}
    parts = [
        "# Settings",
        (
            "Every key can be set on the command line (`asfedbridge run cpu rounds=20 neuron.decay=0.25`), in TOML, "
            'and from Python (`afb.recipe("cpu", rounds=20, neuron__decay=0.25)`). `asfedbridge show RECIPE` prints '
            "all of them with their values. The table says where recipes change the defaults."
        ),
        "## The run",
        table(setting_rows(Spec, "", recipes)),
    ]
    for name, cls in TABLES.items():
        parts += [f"## `{name}`", inspect.getdoc(cls) or "", table(setting_rows(cls, f"{name}.", recipes))]
    parts += [
        "## `method`",
        "`method=NAME` chooses the [method](../methods.md); each of its fields is a key `method.FIELD`.",
    ]
    for name, cls in sorted(METHODS.items()):
        parts += [f"### `{name}`", table(setting_rows(cls, "method.", {})) or "It has no fields."]
    return "\n\n".join(parts)


def setting_rows(cls: type, prefix: str, recipes: dict[str, Spec]) -> list[list[str]]:
    ranges = {name: f"{least:g} to {most:g}" for name, least, most in RANGES} if cls is Spec else {}
    hints, comments = get_type_hints(cls), describe_fields(cls)
    rows = []
    for field in dataclasses.fields(cls):
        if field.name in (*TABLES, "method"):
            continue
        text = comments[field.name]
        if not text:
            raise ValueError(f"{prefix}{field.name}: no comment in the source of {cls.__name__}")
        changed = {n: v for n, r in recipes.items() if (v := value(r, prefix + field.name)) != field.default}
        others = "; ".join(f"{name}: {show(v)}" for name, v in changed.items())
        rows.append(
            [f"`{prefix}{field.name}`", code(show(field.default)), ranges.get(field.name, kind(hints[field.name])),
             escape(text) + (f". Recipes: {escape(others)}" if others else "")]
        )  # fmt: skip
    return [["key", "default", "values", "meaning"], *rows] if rows else []


def value(spec: Spec, key: str) -> Any:
    found: Any = spec
    for part in key.split("."):
        found = getattr(found, part)
    return found


def commands_page() -> str:
    parser = build_parser()
    parts = [
        "# Commands",
        (
            "Options and other words may be in any order. Exit codes: 0 done, 1 failed, 2 bad usage or configuration "
            "(one line, no traceback), 130 interrupted (a checkpoint is written)."
        ),
    ]
    for name, command in commands(parser):
        parts += [f"## `{name}`", f"```text\n{command.format_help().strip()}\n```"]
    return "\n\n".join(parts)


def commands(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """All commands and their actions, in the order of the parser."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for sub in action.choices.values():
                yield sub.prog, sub
                yield from commands(sub)


def data_page() -> str:
    rows = [[f"`{name}`", escape(what)] for name, what, _ in describe()]
    return "\n\n".join(
        [
            "# Data sets",
            (
                "`asfedbridge data fetch NAME` downloads and verifies one. [Use your own data](../data.md) describes "
                "`npz:` and `folder:`."
            ),
            table([["name", "what it is"], *rows]),
        ]
    )


def python_page() -> str:
    """The public names in sections; a name without a docstring is an error."""
    parts = [
        "# Python API",
        (
            "`import asfedbridge as afb`. Names are imported when they are first used. "
            "[Python, by example](../python.md) shows how they work together."
        ),
    ]
    stub = ast.parse(STUB.read_text(encoding="utf-8")).body
    names = [(str(node.module), node.names[0].name) for node in stub if isinstance(node, ast.ImportFrom)]
    for heading in SECTIONS:
        parts.append(f"## {heading}")
        for module, name in names:
            if heading == next(h for h, modules in SECTIONS.items() if module.startswith(modules)):
                if callable(found := getattr(asfedbridge, name)) and not inspect.getdoc(found):
                    raise ValueError(f"asfedbridge.{name} has no docstring")
                parts.append(f"::: asfedbridge.{module}.{name}")
    return "\n\n".join(parts)


def table(rows: list[list[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]]) if rows else ""


def kind(hint: Any) -> str:
    return escape(getattr(hint, "__name__", str(hint)).replace("Literal", "choice"))


def show(value: Any) -> str:
    return "" if value is dataclasses.MISSING else str(list(value) if isinstance(value, tuple) else value)


def code(text: str) -> str:
    return f"`{text}`" if text else ""


def escape(text: str) -> str:
    for mark in "|*[]":
        text = text.replace(mark, f"\\{mark}")
    return text.replace("<", "&lt;")
