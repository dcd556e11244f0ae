"""The command line. Commands import what they need when they run, so that `--help` does not load torch."""

import argparse
import contextlib
import os
import re
import sys
from collections.abc import Sequence

from asfedbridge.cli import commands
from asfedbridge.cli.arguments import resolve
from asfedbridge.cli.parser import build_parser
from asfedbridge.cli.terminal import BAD_USAGE, FAILED, INTERRUPTED
from asfedbridge.core import (
    BadInput,
    CallbackFailed,
    Diverged,
    GuardError,
    TooFewClients,
    WorkerLost,
    load_entry_points,
    load_plugin,
    one_line,
)

__all__ = ["build_parser", "main", "resolve"]

# The library's messages name arguments of Python functions. These rules replace them with command-line options.
OPTIONS = (
    (re.compile(r"\bresume=True\b"), "--resume"),
    (re.compile(r"\bcheckpoint=True\b"), "--checkpoint"),
    (re.compile(r"\btrust=True\b"), "--trust"),
    (re.compile(r"\bclient="), "--client "),
    (re.compile(r"\bdata=SOURCE\b"), "--data SOURCE"),
    (re.compile(r"\b(out|workers|engine|format|callback|seeds)="), r"--\1 "),
    (re.compile(r"\bdata_root\b"), "--data-root"),
    (re.compile(r"\bfrom_round="), "--from-round "),
    (re.compile(r"\bfrom_round\b"), "--from-round"),
    (re.compile(r"\banother out\b"), "another --out"),
    (re.compile(r"; the run used the plugin (.*); load it with load_plugin"), r"; add --import \1"),
    (re.compile(r"\bload that file with load_plugin"), "add --import FILE"),
    (
        re.compile(r"\bpass models=.*, or load the file that registers it with load_plugin"),
        "add --import FILE, the file that registers it",
    ),
    (re.compile(r"^import (?=.*\.py: |.*: there is no such)"), "--import "),
)


def main(argv: Sequence[str] | None = None) -> int:
    try:
        code = perform(argv)
        sys.stdout.flush()  # here, so that a closed pipe is handled below
        return code
    except BrokenPipeError:  # the reader closed the pipe, as in `... | head`
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


def perform(argv: Sequence[str] | None) -> int:
    """Run the command and return its exit code. Expected failures are reported in one line."""
    try:
        args = parse(argv)
        args.words = sys.argv[1:] if argv is None else list(argv)
        for problem in load_entry_points():
            say(problem)
        for file in getattr(args, "files", ()):
            load_plugin(file)
        return int(getattr(commands, f"command_{args.command}")(args))
    except BadInput as error:
        say(name_options(error))
        return BAD_USAGE
    except Diverged as error:
        say(f"{error}; earlier rounds are saved")
        return FAILED
    except (WorkerLost, TooFewClients, CallbackFailed, GuardError) as error:
        say(name_options(error))
        return FAILED
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return INTERRUPTED


def say(message: str) -> None:
    """Print one line to stderr."""
    print(f"asfedbridge: {one_line(message)}", file=sys.stderr)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the arguments. RECIPE and KEY=VALUE words may appear anywhere between the options."""
    parser = build_parser()
    words = sys.argv[1:] if argv is None else argv
    args, rest = parser.parse_known_args(words or ["--help"])
    wrong = [word for word in rest if word.startswith("-") or not hasattr(args, "what")]
    if wrong:
        parser.error(f"unrecognized arguments: {' '.join(wrong)}")
    if rest:
        args.what = [*args.what, *rest]
    return args


def name_options(error: Exception) -> str:
    """The error's message, with Python arguments replaced by command-line options."""
    text = str(error)
    for pattern, option in OPTIONS:
        text = pattern.sub(option, text)
    return text
