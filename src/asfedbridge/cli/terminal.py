"""Messages on the terminal, signals and exit codes."""

import signal
import sys
from contextlib import suppress
from typing import NoReturn

from asfedbridge.core import printable

DONE, FAILED, BAD_USAGE, INTERRUPTED = 0, 1, 2, 130


def tell(line: str) -> None:
    print(printable(line), file=sys.stderr, flush=True)


def print_if_possible(line: str) -> None:
    with suppress(OSError):  # the terminal may be closed
        tell("")  # a new line below the progress bar
        tell(line)


def end_like_ctrl_c() -> None:
    """Handle SIGTERM and SIGHUP like Ctrl-C, unless they are ignored (nohup)."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)


def _interrupt(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt
