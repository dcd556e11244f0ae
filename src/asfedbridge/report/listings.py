"""What `asfedbridge list` prints, made from the registries themselves."""

import inspect
import re
import shutil
import textwrap
from collections.abc import Callable, Sequence
from typing import TextIO

from asfedbridge.analysis import count_layers
from asfedbridge.core import MB, METHODS, ClientInfo, Method, Task
from asfedbridge.data import data_root, describe
from asfedbridge.kernels import describe as describe_kernels
from asfedbridge.models import MODELS, outline_backbone
from asfedbridge.paper.experiments import EXPERIMENTS
from asfedbridge.runs import FLEETS, RECIPES, STAGES, known_callbacks, method_fields

TOPICS = ("methods", "models", "data", "recipes", "fleets", "experiments", "callbacks", "kernels")


def list_topic(topic: str, root: str | None = None) -> str:
    """One topic, or everything under headings."""
    if topic == "all":
        return "\n\n".join(f"{name}:\n{textwrap.indent(list_topic(name, root), '  ')}" for name in TOPICS)
    return {
        "methods": list_methods,
        "models": lambda: _pairs({name: MODELS[name].about for name in sorted(MODELS)}),
        "data": lambda: _pairs({name: f"{what} ({where})" for name, what, where in describe(data_root(root))}),
        "recipes": lambda: _pairs({name: inspect.getdoc(recipe) or "" for name, recipe in RECIPES.items()}),
        "fleets": lambda: _pairs(FLEETS | {"N+M": "N*resnet18:ann,M*resnet18:snn for any N and M"}),
        "experiments": lambda: _pairs({name: entry.title for name, entry in EXPERIMENTS.items()}),
        "callbacks": list_callbacks,
        "kernels": lambda: _pairs(describe_kernels()),
    }[topic]()


def list_callbacks() -> str:
    """Each callback with the first line of its documentation, and its options with defaults."""
    parts = []
    for name, make in sorted(known_callbacks().items()):
        about = (inspect.getdoc(make) or "").split("\n")[0]
        fields = inspect.signature(make).parameters.values()
        options = ", ".join(f.name if f.default is f.empty else f"{f.name}={_show(f.default)}" for f in fields)
        parts.append(f"{name}\n    {about}\n    {options or 'no options'}")
    return "\n".join(parts)


def list_methods() -> str:
    """Each method with the first line of its file, and its hyper-parameters with defaults."""
    parts = []
    for name, cls in sorted(METHODS.items()):
        about = describe_method(cls)["Title"].partition("\n")[0]
        fields = ", ".join(f"{key}={_show(value)}" for key, value in method_fields(cls).items())
        parts.append(f"{name}\n    {about}\n    {fields or 'no hyper-parameters'}")
    return "\n".join(parts)


PARTS = ("Exchanged", "Client", "Server", "Choices")
INTRODUCTION = """# Methods

Made from the code by `asfedbridge list methods --markdown`; a test compares. Sizes are the largest that cross in one
round, per client, for a full-width ResNet-18 and 100 classes, in MB of 2^20 bytes. Private backbone, shard,
start and epochs per round are the same in all, and the backbone's own head is judged: `trained` after local
training, `received` after the download. What was chosen where the papers leave it open stands below, method by method,
and most of it is a field (`method.FIELD=value`)."""
TASK = Task(classes=100, channels=3, image_size=32)
CLIENTS = (ClientInfo(0, "ann", "resnet18"), ClientInfo(1, "snn", "resnet18", T=4))


def describe_method(cls: type[Method]) -> dict[str, str]:
    """The text a method's file opens with, part by part; ``Title`` is what stands before the first label.

    A method of the user's own is described by its class, if that has a docstring.
    """
    own = cls.__doc__ if cls.__doc__ and not cls.__doc__.startswith(f"{cls.__name__}(") else None
    builtin = cls.__module__.startswith("asfedbridge.")
    text = inspect.cleandoc((None if builtin else own) or inspect.getdoc(inspect.getmodule(cls)) or "")
    title, *rest = re.split(rf"^({'|'.join(PARTS)})\b", text, flags=re.MULTILINE)
    return {"Title": title.strip()} | dict(zip(rest[::2], map(str.strip, rest[1::2]), strict=True))


def methods_page() -> str:
    """The content of docs/methods.md."""
    head = ["method", "exchanged", "up MB", "down MB", "client", "server", "judged at"]
    rows, sections = [head, ["---", "---", "---:", "---:", "---", "---", "---"]], []
    for name, cls in sorted(METHODS.items()):
        method, about = cls(), describe_method(cls)
        ways = method.largest_upload, method.largest_download
        sizes = [" to ".join(sorted({f"{way(TASK, c) / MB:.2f}" for c in CLIENTS})) for way in ways]
        texts = (about.get(part, "").lstrip(": ") for part in PARTS[:3])
        what, client, server = (" ".join(text.split()).replace("|", "\\|") for text in texts)
        rows.append([f"`{name}`", what, *sizes, client, server, method.reports])
        defaults = ", ".join(f"`{key}={_show(value)}`" for key, value in method_fields(cls).items())
        choices = "Choices" + about.get("Choices", ": not described.").replace(":\n-", ":\n\n-", 1)
        sections += [f"## `{name}`", about["Title"], f"Defaults: {defaults or 'none'}.", *_in_recipes(method), choices]
    return "\n\n".join([INTRODUCTION, _table(rows), *sections])


def _in_recipes(method: Method) -> list[str]:
    """A line with the values that recipes change, if they change any."""
    parts = []
    for stage, where in STAGES.items():
        adapted = vars(method.at(stage))
        values = [f"`{key}={_show(value)}`" for key, value in adapted.items() if value != vars(method)[key]]
        parts += [f"{where}: {', '.join(values)}"] if values else []
    return [f"In recipes, {'; '.join(parts)}."] if parts else []


def models_table() -> str:
    """Sizes of all families in Markdown: the table of docs/models.md."""
    widths = (1.0, 0.5, 0.25)
    rows = [["model", "what it is", *[f"parameters, MFLOPs at {w:g}" for w in widths]]]
    rows.append(["---", "---", *["---:"] * len(widths)])
    for name in sorted(MODELS):
        if MODELS[name].family:
            outlines = [outline_backbone(TASK, ClientInfo(0, "ann", name, width)) for width in widths]
            sizes = []
            for outline in outlines:
                products = sum(layer.macs for layer in count_layers(outline, TASK).values())
                sizes.append(f"{sum(p.numel() for p in outline.parameters()):,}, {2e-6 * products:.2f}")
            rows.append([f"`{name}`", MODELS[name].about, *sizes])
    return _table(rows)


def download_bar(stream: TextIO) -> Callable[[str, int, int | None], None]:
    """A progress callback that draws one moving line on a terminal and says little elsewhere."""
    live = stream.isatty()
    told: set[str] = set()

    def show(name: str, done: int, total: int | None) -> None:
        if not live:
            if name not in told:
                told.add(name)
                stream.write(f"{name}\n")
            return
        size = f"{done / 2**20:7.1f} MB" + (f" of {total / 2**20:.1f} MB" if total else "")
        width = max(10, min(40, shutil.get_terminal_size().columns - len(name) - len(size) - 8))
        filled = int(width * done / total) if total else 0
        stream.write(f"\r\x1b[2K{name} [{'#' * filled}{'.' * (width - filled)}] {size}")
        if total and done >= total:
            stream.write("\n")
        stream.flush()

    return show


def _table(rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _pairs(entries: dict[str, str]) -> str:
    width = max(map(len, entries))
    return "\n".join(f"{name.ljust(width)}  {text}" for name, text in entries.items())


def _show(value: object) -> str:
    return ",".join(f"{v:g}" for v in value) if isinstance(value, tuple) else str(value)
