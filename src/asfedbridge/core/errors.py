"""Exceptions for expected failures, and messages that are safe for terminals and logs.

Texts from files, nodes and plugins are untrusted: they are shown without control characters.
"""

import difflib
import textwrap
import traceback
from collections.abc import Iterable

MAX_MESSAGE = 1200  # characters


class BadInput(ValueError):
    """Invalid user input. The message is one line naming the field, the value and the fix; exit code 2.

    Unprintable characters are escaped and long messages are shortened.
    """

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


class Damaged(BadInput):
    """A checkpoint file is damaged; the message names it."""


class Diverged(ArithmeticError):
    """Training or a payload produced NaN or infinity; the message names client, round and stage."""


class GuardError(RuntimeError):
    """A payload differs from what the method declared: a programming error or an attack, never a user error."""


class WorkerLost(RuntimeError):
    """A worker process died (killed, out of memory); the message names the worker, its client and the round."""


class CallbackFailed(RuntimeError):
    """A callback raised an exception; the message names the callback. The run was saved first and can be resumed."""


class TooFewClients(RuntimeError):
    """A networked round received too few usable uploads; the message names the round and the missing clients."""


def describe_error(error: BaseException, file: str = "") -> str:
    """Describe an exception in user code in one line: its type, its text and the line of ``file`` that raised it."""
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == file]
    where = f"line {lines[-1]}: " if lines else ""
    return where + textwrap.shorten(f"{type(error).__name__}: {error}".removesuffix(": "), 300)


def nearest(word: str, known: Iterable[str]) -> str:
    """The end of an error message: the closest known name, and all known names."""
    known = sorted(known)
    match = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    meant = f"; did you mean '{match[0]}'?" if match else ";"
    return f"{meant} known: {', '.join(known)}"


def printable(text: str) -> str:
    """One line without control characters: whitespace becomes spaces, other unprintable characters are escaped.

    This includes direction marks, which terminals obey, and lone surrogates, which cannot be encoded.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c.isspace() else ascii(c)[1:-1] for c in text)


def one_line(text: str, longest: int = MAX_MESSAGE) -> str:
    """``printable`` text, shortened in the middle: an error message begins with the field and ends with the fix."""
    if len(text) > longest:
        end = longest // 3
        text = f"{text[: longest - end]} ... {text[-end:]}"
    return printable(text)


def brief(error: BaseException, longest: int = 200) -> str:
    """The first line of an error's text, or its type if the text is empty."""
    return printable((str(error).strip().splitlines() or [type(error).__name__])[0][:longest])
