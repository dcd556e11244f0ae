"""Argument types, and options shared by several commands."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from asfedbridge.core import BadInput, is_there

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction["Parser"]  # argparse has no public name for it
else:
    Commands = object

MAX_WORKERS = 1024
MAX_DIGITS = 19


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Report the error in one line, without the usage text."""
        raise BadInput(f"{message} (see {self.prog} --help)")


def resolve(words: Sequence[str]) -> Any:
    """Build a specification from command-line words: a recipe or a file, and KEY=VALUE changes.

    A recipe applies the settings of the data set; a file is used unchanged.
    """
    from asfedbridge.runs import parse_value, recipe

    name, settings = split_words(words)
    return recipe(name, {key: parse_value(text) for key, text in settings.items()})


def split_words(words: Sequence[str]) -> tuple[str, dict[str, str]]:
    """The recipe or file that the words name, and the KEY=VALUE changes to it."""
    named = [word for word in words if "=" not in word]
    if len(named) > 1:
        raise BadInput(f"give one recipe or file, not {len(named)}: {' '.join(named)}")
    settings = {}
    for word in words:
        key, equals, value = word.partition("=")
        if equals and not key.strip():
            raise BadInput(f"'{word}' is not KEY=VALUE; e.g. rounds=5 or method.bridge_lr=0.01")
        if equals:
            settings[key.strip()] = value.strip()
    return named[0] if named else "quickstart", settings


def positive(text: str) -> int:
    value = int(text) if text.isdecimal() and len(text) <= MAX_DIGITS else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"invalid number '{text}': expected a positive integer")
    return value


def seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 10**7:
        raise argparse.ArgumentTypeError(f"invalid number of seconds '{text}': expected 0 to 10000000")
    return value


def worker_count(text: str) -> int:
    if not (_is_whole(text) and 1 <= int(text) <= MAX_WORKERS):
        raise argparse.ArgumentTypeError(f"invalid number of processes '{text}': expected 1 to {MAX_WORKERS}")
    return int(text)


def client_id(text: str) -> int:
    if not _is_whole(text):
        raise argparse.ArgumentTypeError(f"invalid client id '{text}': expected an integer, e.g. 9")
    return int(text)


def _is_whole(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS


def path(text: str) -> Path:
    try:
        is_there(Path(text))
    except BadInput as error:
        raise argparse.ArgumentTypeError(f"{error}; give another path") from None
    return Path(text)


def names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def seeds(text: str) -> list[int]:
    if not all(map(_is_whole, names(text))) or not names(text):
        raise argparse.ArgumentTypeError(f"invalid seeds '{text}': expected comma-separated integers, e.g. 0,1,2")
    return list(dict.fromkeys(int(name) for name in names(text)))


def data_source(text: str) -> tuple[str, str]:
    name, equals, source = text.partition("=")
    if not (name and equals and source):
        raise argparse.ArgumentTypeError(f"invalid source '{text}': expected NAME=SOURCE, e.g. cifar10=npz:PATH")
    return name, source


def add_import(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--import",
        dest="files",
        action="append",
        default=[],
        metavar="FILE.py",
        help="load a Python file that registers your own methods, models or data sets; may be repeated",
    )


def add_trained(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--checkpoint", action="store_true", help="use the clients of the last checkpoint, if the run is not finished"
    )
    parser.add_argument(
        "--trust", action="store_true", help="allow importing the code of a custom model that the client file names"
    )
    add_import(parser)
    add_data_root(parser)


def add_data_root(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data-root", metavar="DIR", help="folder of downloaded data (default: $ASFEDBRIDGE_DATA, else the cache)"
    )
