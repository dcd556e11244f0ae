"""The command line. Only what a command needs is imported, when it runs: help must not wait for torch."""

import sys
from collections.abc import Sequence

from asfedbridge.cli import commands
from asfedbridge.cli.commands import BAD_USAGE, FAILED, INTERRUPTED, resolve
from asfedbridge.cli.parser import build_parser
from asfedbridge.core.errors import BadInput, CallbackFailed, Diverged, TooFewClients, WorkerLost

__all__ = ["build_parser", "main", "resolve"]


def main(argv: Sequence[str] | None = None) -> int:
    try:
        args = build_parser().parse_args(argv)
        args.words = sys.argv[1:] if argv is None else list(argv)
        for file in getattr(args, "files", ()):
            from asfedbridge.models.registry import load_file

            load_file(file)
        return int(getattr(commands, f"command_{args.command}")(args))
    except BadInput as error:
        print("asfedbridge:", *str(error).splitlines(), file=sys.stderr)
        return BAD_USAGE
    except Diverged as error:
        print(f"asfedbridge: {error}; rounds before this one are kept", file=sys.stderr)
        return FAILED
    except (WorkerLost, TooFewClients, CallbackFailed) as error:
        print(f"asfedbridge: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()
        return FAILED
