"""The ways a run ends early that are nobody's bug."""

import difflib
from collections.abc import Iterable


class BadInput(ValueError):
    """What the user gave cannot be used: one line naming the field, the value and the fix; exit code 2."""


class Diverged(ArithmeticError):
    """NaN or infinity appeared in training or in a payload; the message names client, round and stage."""


class WorkerLost(RuntimeError):
    """A process that clients live in is gone (killed, out of memory); the message names it, its client and round."""


class CallbackFailed(RuntimeError):
    """A callback raised an exception; the message names it. The run was saved first and can be resumed."""


class TooFewClients(RuntimeError):
    """A round over a network got fewer usable uploads than it needs; the message names the round and who is missing."""


def nearest(word: str, known: Iterable[str]) -> str:
    """The end of an error message: what the user may have meant, and what there is."""
    known = sorted(known)
    match = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    meant = f"; did you mean '{match[0]}'?" if match else ";"
    return f"{meant} known: {', '.join(known)}"
