"""Reading untrusted input: regular files of bounded size, JSON and TOML of bounded depth.

Any problem with a file raises a ``BadInput`` that names it. ``parse_json`` and ``parse_toml`` parse text and raise only
``ValueError``.
"""

import errno
import json
import math
import os
import re
import stat
import tomllib
from io import BufferedReader
from pathlib import Path
from typing import Any, NoReturn

from asfedbridge.core.errors import BadInput, brief

MB = 2**20
MAX_BYTES = 256 * MB  # default limit for files
MAX_TOML_BYTES = MB  # 10,000 clients written out one by one take a fifth of this
MAX_DEPTH = 64  # of nested arrays and tables
MAX_DIGITS = 40  # of an integer

ABSENT = (errno.ENOENT, errno.ENOTDIR)
RESTORE = "restore it, or remove it"
QUOTED = re.compile(r"\"(?:\\.|[^\"\\\n])*+\"?|'[^'\n]*+'?")
DOTTED = re.compile(rf"(?<![\w-])(?:[\w-]++[ \t]*+\.[ \t]*+){{{MAX_DEPTH}}}")


def is_there(path: Path) -> bool:
    """Whether the path exists. Raises BadInput if that cannot be determined."""
    try:
        os.stat(path)
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno in ABSENT:
            return False
        raise BadInput(f"{path}: {explain(error)}") from None
    return True


def open_regular(path: Path, fix: str = RESTORE) -> BufferedReader:
    """Open a regular file, or a link to one. Never blocks: FIFOs and devices are refused."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise BadInput(f"{path}: {explain(error)}; {fix}") from None
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        raise BadInput(f"{path}: is {'a folder' if stat.S_ISDIR(mode) else 'a pipe or a device'}, not a file; {fix}")
    return os.fdopen(handle, "rb")


def read_bytes(path: Path, most: int = MAX_BYTES, fix: str = RESTORE) -> bytes:
    with open_regular(path, fix) as file:
        try:
            size = os.fstat(file.fileno()).st_size
            content = file.read(most + 1) if size <= most else b""
        except OSError as error:
            raise BadInput(f"{path}: {explain(error)}; {fix}") from None
    if size > most or len(content) > most:
        raise BadInput(f"{path}: is larger than the limit of {most / MB:,.0f} MB; {fix}")
    return content


def read_lines(path: Path, most: int = MAX_BYTES, fix: str = RESTORE) -> list[str]:
    """Lines of text; invalid UTF-8 is replaced."""
    return read_bytes(path, most, fix).decode("utf-8", "replace").splitlines()


def read_json(path: Path, fix: str = RESTORE) -> Any:
    try:
        return parse_json(read_bytes(path, fix=fix))
    except BadInput:
        raise
    except ValueError as error:
        raise BadInput(f"{path}: is not valid JSON ({brief(error)}); {fix}") from None


def read_toml(path: Path, fix: str = "correct it or give another") -> dict[str, Any]:
    try:
        return parse_toml(read_bytes(path, MAX_TOML_BYTES, fix).decode())
    except BadInput:
        raise
    except ValueError as error:
        raise BadInput(f"{path}: is not valid TOML ({brief(error)}); {fix}") from None


def parse_json(content: bytes | str) -> Any:
    """Parse JSON with finite numbers only. Raises ValueError."""
    try:
        found = json.loads(content, parse_int=_whole, parse_float=_finite, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError(f"more than {MAX_DEPTH} levels deep") from None
    brackets = ("[", "{") if isinstance(content, str) else (b"[", b"{")
    if sum(map(content.count, brackets)) > MAX_DEPTH:  # type: ignore[arg-type]
        _check_depth(found)
    return found


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML. Raises ValueError. Infinity and NaN are valid TOML, so callers must check for them."""
    if len(text) > MAX_DEPTH and DOTTED.search(QUOTED.sub("s", text)):  # long keys take the parser quadratic time
        raise ValueError(f"a key of more than {MAX_DEPTH} parts")
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except RecursionError:
        raise ValueError(f"more than {MAX_DEPTH} levels deep") from None
    except ValueError:  # raised by int(), with a message for programmers
        raise ValueError(f"an integer of more than {MAX_DIGITS} digits") from None
    _check_depth(found)
    return found


def explain(error: Exception) -> str:
    """The reason why a path cannot be used, for an error message."""
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if isinstance(error, OSError):
        return f"cannot be read ({error.strerror or type(error).__name__})"
    return "is not a valid path (it contains a NUL character)"


def _check_depth(tree: Any) -> None:
    """Raise ValueError if a value is nested too deeply for recursive functions or an integer is too long."""
    level, depth = [tree], 0
    while level:
        if depth > MAX_DEPTH:
            raise ValueError(f"more than {MAX_DEPTH} levels deep")
        inner: list[Any] = []
        for entry in level:
            if isinstance(entry, dict):
                inner += entry.values()
            elif isinstance(entry, list):
                inner += entry
            elif isinstance(entry, int) and entry.bit_length() > MAX_DIGITS * 4:
                raise ValueError(f"an integer of more than {MAX_DIGITS} digits")
        level, depth = inner, depth + 1


def _whole(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError(f"an integer of {len(text)} digits")
    return int(text)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:40]} is too large")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a valid JSON number")
