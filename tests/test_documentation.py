"""Commands and Python in the README and the documentation work as printed.

The blocks of a page run in their order, in a folder with a finished run, images and data:

- Python blocks, and the text of `<!-- python ... -->`, which readers do not see, are one script per page;
- commands are parsed, their specifications read and their experiments planned. Those that take seconds are executed.
  `--import FILE.py` names the Python that the page has shown so far.

Blocks that are no code (synopses, output, trees of files) contain no line that begins with `asfedbridge`, or are marked
`text`. docs/deployment.md has a test of its own, which follows it on several machines.
"""

import re
import shlex
import shutil
from argparse import Namespace
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import pytest
from PIL import Image
from tests.scripts import run_script

from asfedbridge import cli
from asfedbridge.cli.arguments import split_words
from asfedbridge.core import plugins
from asfedbridge.core.method import METHODS
from asfedbridge.core.plugins import load_plugin
from asfedbridge.data.sources.registry import SOURCES
from asfedbridge.models import zoo
from asfedbridge.models.registry import MODELS
from asfedbridge.paper import reproduce
from asfedbridge.runs.callback import CALLBACKS
from asfedbridge.runs.sweep import expand

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [page for page in PAGES if page.parent.name != "results" and page.stem != "deployment"]
BLOCK = re.compile(
    r"^```(?P<kind>\w*)\n(?P<shown>.*?)^```$|^<!-- python\n(?P<hidden>.*?)^-->$", re.DOTALL | re.MULTILINE
)
SHELL = ("", "sh", "bash")
PLACEHOLDER = re.compile(r"(^|[=:.])[A-Z][A-Z_]*$|\.\.\.|^\[")  # RUN_DIR, method=M, [--json]
HOURS = ("bench", "flower")  # they need an idle machine, or several machines
RUN = "runs/mine"


class Command(NamedTuple):
    text: str
    words: list[str]
    python: str  # that the page has shown before it

    @property
    def is_concrete(self) -> bool:
        return not any(PLACEHOLDER.search(word) for word in self.words)


def read_page(page: Path) -> tuple[str, list[Command]]:
    """The page's Python, and the commands of its blocks."""
    python, commands = "", []
    for block in BLOCK.finditer(page.read_text(encoding="utf-8")):
        if block["hidden"] or block["kind"] == "python":
            python += (block["hidden"] or block["shown"]) + "\n\n"
        elif block["kind"] in SHELL:
            for line in block["shown"].replace("\\\n", " ").splitlines():
                if line.lstrip().startswith("asfedbridge "):
                    words = shlex.split(re.sub(r"\$\w+", "0", line), comments=True)[1:]
                    end = next((i for i, word in enumerate(words) if word in (">", "|")), len(words))
                    commands.append(Command(line.strip(), words[:end], python))
    return python, commands


def name_page(page: Path) -> str:
    return page.relative_to(ROOT).with_suffix("").as_posix()


WITH_PYTHON = [page for page in PAGES[1:] if read_page(page)[0]]  # the README's is run by test_readme.py
WITH_COMMANDS = [page for page in PAGES if read_page(page)[1]]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What pages take for granted: a finished run, images and arrays."""
    folder = tmp_path_factory.mktemp("prepared")
    assert cli.main(["run", "smoke", "rounds=1", "--out", str(folder / RUN), "--json"]) == 0
    (folder / "photos").mkdir()
    for name in ("one.png", "photos/two.png"):
        Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)).save(folder / name)
    labels = np.arange(40) % 10
    images = np.random.default_rng(0).integers(0, 256, (40, 8, 8), dtype=np.uint8)
    np.savez(folder / "mine.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    return folder


@pytest.fixture
def folder(prepared: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(prepared, tmp_path / "folder"))


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    """What a page registers is gone afterwards."""
    registries: tuple[dict[str, Any], ...] = (METHODS, MODELS, SOURCES, CALLBACKS)
    before = [dict(registry) for registry in registries]
    yield
    for registry, known in zip(registries, before, strict=True):
        registry.clear()
        registry.update(known)
    plugins.FILES.clear()
    zoo.forget_models()


def execute(script: Path) -> None:
    done = run_script(script, script.parent)
    assert done.returncode == 0, f"{script}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    assert "Traceback" not in done.stderr


TRAINING = ("afb.run(", "afb.federate(", "main(", RUN)  # Python that trains, or uses a trained client


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(p, marks=pytest.mark.long if any(t in read_page(p)[0] for t in TRAINING) else ())
        for p in WITH_PYTHON
    ],
    ids=name_page,
)
def test_the_python_of_a_page_runs(page: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    source, _ = read_page(page)
    folder: Path = request.getfixturevalue("folder") if RUN in source else tmp_path
    for package in ("spikingjelly", "matplotlib", "nir"):
        if package in source:
            pytest.importorskip(package)
    (folder / "page.py").write_text(source, encoding="utf-8")
    execute(folder / "page.py")


class Planned(Exception):
    """A command is about to train."""


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=name_page)
def test_the_commands_of_a_page_are_valid(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*args: object) -> NoReturn:
        raise Planned

    monkeypatch.setattr(reproduce, "play", stop)
    monkeypatch.chdir(tmp_path)
    for command in read_page(page)[1]:
        args = cli.parse(command.words)
        for file in getattr(args, "files", ()):
            Path(file).write_text(command.python, encoding="utf-8")
            load_plugin(file)
        if not command.is_concrete:
            continue
        if args.command in ("run", "show") and not any(word.endswith(".toml") for word in args.what):
            expand(*split_words(args.what))
        elif args.command == "reproduce" and not args.dry_run:
            with suppress(Planned):
                assert cli.main(command.words) == 0, command.text


def takes_seconds(command: Command) -> bool:
    name = command.words[0]
    if not command.is_concrete or name in HOURS:
        return False
    if name in ("run", "reproduce"):
        return "smoke" in command.words
    if name == "data":
        return command.words[1:3] == ["images", "digits"]  # others need a download
    return name != "costs" or "cpu" not in command.words  # a recipe reads its data


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", [p for p in WITH_COMMANDS if any(map(takes_seconds, read_page(p)[1]))], ids=name_page)
def test_the_quick_commands_of_a_page_run(page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, which has torch loaded already; test_cli.py and test_wheel.py start the command itself."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    for command in filter(takes_seconds, read_page(page)[1]):
        args: Namespace = cli.parse(command.words)
        for file in getattr(args, "files", ()):
            (folder / file).write_text(command.python, encoding="utf-8")
        for run in folders_of(args):
            if not (folder / run).exists():
                shutil.copytree(folder / RUN, folder / run)
        if "--verify" in command.words:  # many pages show it, and it takes longest
            if signature(args) in VERIFIED:
                continue
            VERIFIED.add(signature(args))
        assert cli.main(command.words) == 0, command.text


VERIFIED: set[tuple[str, ...]] = set()  # exports that this process has verified


def signature(args: Namespace) -> tuple[str, ...]:
    """Equal for exports of the same client to the same format."""
    return str(args.client), args.format or Path(args.out).suffix.lstrip(".")


def folders_of(args: Namespace) -> list[Path]:
    """Run folders that a command reads."""
    if args.command == "costs":
        return [args.run] if args.run else []
    if args.command in ("report", "analyze"):
        return list(args.folders)
    return [args.folder] if args.command in ("predict", "evaluate", "export") else []


def test_messages_name_pages_of_the_site() -> None:
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    for source in (ROOT / "src").rglob("*.py"):
        for page in re.findall(r"docs/([\w/-]+\.md)", source.read_text(encoding="utf-8")):
            assert f" {page}\n" in nav, f"{source.name} names docs/{page}"
