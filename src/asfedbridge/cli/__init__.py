"""The command line. Only what a command needs is imported, when it runs: help must not wait for torch."""

import argparse
import re
import sys
from collections.abc import Sequence

from asfedbridge.cli import commands
from asfedbridge.cli.commands import BAD_USAGE, FAILED, INTERRUPTED, resolve
from asfedbridge.cli.parser import build_parser
from asfedbridge.core import (
    BadInput,
    CallbackFailed,
    Diverged,
    TooFewClients,
    WorkerLost,
    load_entry_points,
    load_plugin,
)

__all__ = ["build_parser", "main", "resolve"]

# Arguments of the library's functions, as its messages name them, and the options of the command line.
OPTIONS = (
    (re.compile(r"\bresume=True\b"), "--resume"),
    (re.compile(r"\b(out|workers|engine)="), r"--\1 "),
    (re.compile(r"\banother out\b"), "another --out"),
    (re.compile(r"; the run was made with the plugin (.*); load it with load_plugin"), r"; add --import \1"),
    (re.compile(r"^import (?=.*\.py: |.*: there is no such)"), "--import "),
)


def main(argv: Sequence[str] | None = None) -> int:
    try:
        args = parse(argv)
        args.words = sys.argv[1:] if argv is None else list(argv)
        for problem in load_entry_points():
            print(f"asfedbridge: {problem}", file=sys.stderr)
        for file in getattr(args, "files", ()):
            load_plugin(file)
        return int(getattr(commands, f"command_{args.command}")(args))
    except BadInput as error:
        print("asfedbridge:", *name_options(error).splitlines(), file=sys.stderr)
        return BAD_USAGE
    except Diverged as error:
        print(f"asfedbridge: {error}; rounds before this one are kept", file=sys.stderr)
        return FAILED
    except (WorkerLost, TooFewClients, CallbackFailed) as error:
        print(f"asfedbridge: {name_options(error)}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()
        return FAILED


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The arguments of a command. Its RECIPE and KEY=VALUE words may stand anywhere between the options."""
    parser = build_parser()
    args, rest = parser.parse_known_args(argv)
    wrong = [word for word in rest if word.startswith("-") or not hasattr(args, "what")]
    if wrong:
        parser.error(f"unrecognized arguments: {' '.join(wrong)}")
    if rest:
        args.what = [*args.what, *rest]
    return args


def name_options(error: Exception) -> str:
    """An error's message with options of the command line in the place of arguments."""
    text = str(error)
    for pattern, option in OPTIONS:
        text = pattern.sub(option, text)
    return text
