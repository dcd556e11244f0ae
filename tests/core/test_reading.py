"""Untrusted files and text: every problem gives one line that names the file."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from asfedbridge.core import reading
from asfedbridge.core.errors import BadInput
from asfedbridge.core.reading import is_there, parse_json, parse_toml, read_bytes, read_json, read_lines, read_toml

pytestmark = pytest.mark.timeout(60)  # a blocking read of a FIFO would never return
READERS: list[Callable[[Path], Any]] = [read_bytes, read_lines, read_json, read_toml]


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_folder(path: Path) -> None:
    path.mkdir()


def make_unreadable(path: Path) -> None:
    path.symlink_to("/proc/self/mem")  # a regular file that not even root can read


def make_endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def make_loop(path: Path) -> None:
    path.symlink_to(path.name)


def make_large(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**40)  # sparse: takes no disk space


def make_nothing(path: Path) -> None:
    pass


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (make_fifo, "a pipe or a device"),
        (make_folder, "is a folder"),
        (make_unreadable, "cannot be read (Input/output error)"),
        (make_endless, "a pipe or a device"),
        (make_loop, "cannot be read (Too many levels of symbolic links)"),
        (make_large, "is larger than the limit of"),
        (make_nothing, "no such file"),
    ],
)
def test_unreadable_paths_are_refused(
    tmp_path: Path, read: Callable[[Path], Any], make: Callable[[Path], None], words: str
) -> None:
    path = tmp_path / "file"
    make(path)
    with pytest.raises(BadInput) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert words in str(caught.value)


@pytest.mark.parametrize("name", ["x" * 5000, "a/" * 3000, "a\0b"])
def test_invalid_paths_are_refused(name: str) -> None:
    for look in (*READERS, is_there):
        with pytest.raises(BadInput):
            look(Path(name))


def test_file_without_permission_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o755)
    monkeypatch.chdir(tmp_path)  # the parent folders are not accessible either
    Path("file").write_text("{}")
    Path("file").chmod(0)
    user = os.geteuid()
    try:
        if user == 0:
            os.seteuid(65534)
        with pytest.raises(BadInput, match=r"^file: cannot be read \(Permission denied\)"):
            read_json(Path("file"))
    finally:
        os.seteuid(user)


def test_symbolic_link_to_a_file_is_followed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text('{"a": [1, 2.5, null]}')
    (tmp_path / "link").symlink_to("file")
    assert read_json(tmp_path / "link") == {"a": [1, 2.5, None]}
    assert is_there(tmp_path / "link")
    assert not is_there(tmp_path / "none")
    assert not is_there(tmp_path / "file" / "none")


DEEP = 10_000
BAD_JSON = {
    "deep list": "[" * DEEP,
    "deep list, closed": "[" * 900 + "]" * 900,
    "deep object": '{"a":' * DEEP,
    "deep object, closed": '{"a":' * 100 + "1" + "}" * 100,
    "digits": "9" * 5000,
    "too many digits": '{"a": ' + "9" * 401 + "}",
    "overflow": "[1e999]",
    "NaN": '{"a": NaN}',
    "infinity": "[-Infinity]",
    "nothing": "",
    "not UTF-8": b"\xff\xfe\xfa",
}
BAD_TOML = {
    "deep list": "x = " + "[" * DEEP,
    "deep list, closed": "x = " + "[" * 100 + "]" * 100,
    "deep table": "x = " + "{a = " * DEEP,
    "digits": "x = " + "9" * 5000,
    "too many digits": "x = " + "9" * 401,
    "dots": ".".join("a" * 200_000) + " = 1",
    "dots of a table": f"[{'.'.join('a' * 200_000)}]",
    "dots within": f"x = {{{'.'.join('a' * 200_000)} = 1}}",
    "dots and quotes": ".".join(['"a b"', "'c'", "d"] * 60_000) + " = 1",
    "key without value": "x",
}


@pytest.mark.parametrize("text", BAD_JSON.values(), ids=BAD_JSON)
def test_invalid_json_is_refused(tmp_path: Path, text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        parse_json(text)
    assert "set_int_max_str_digits" not in str(caught.value)
    file = tmp_path / "file.json"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(BadInput, match="is not valid JSON"):
        read_json(file)


@pytest.mark.parametrize("text", BAD_TOML.values(), ids=BAD_TOML)
def test_invalid_toml_is_refused(tmp_path: Path, text: str) -> None:
    """A key of 200,000 parts takes the parser minutes."""
    with pytest.raises(ValueError, match=r".") as caught:
        parse_toml(text)
    assert "set_int_max_str_digits" not in str(caught.value)
    file = tmp_path / "file.toml"
    file.write_text(text)
    with pytest.raises(BadInput, match="is not valid TOML"):
        read_toml(file)


def test_valid_text_is_parsed() -> None:
    assert parse_json('{"a": [[1, -2], {"b": 1.5e300}], "c": 18446744073709551615}')["c"] == 2**64 - 1
    assert parse_json(b'{"a": "' + b"[" * 500 + b'"}') == {"a": "[" * 500}
    text = 'fleet = "' + ",".join(["1*resnet18@0.25:ann"] * 10_000) + '"\na.b."c.d" = 0.5\n'
    assert len(text) < reading.MAX_TOML_BYTES
    assert parse_toml(text)["a"] == {"b": {"c.d": 0.5}}
    assert parse_toml(f'x = "{"a." * 500}"') == {"x": "a." * 500}
