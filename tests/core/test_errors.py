import pytest

from asfedbridge.core.errors import MAX_MESSAGE, BadInput, brief, one_line, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, ± and 東京", "plain, ± and 東京"),
        ("two\nlines\tand\rmore", "two lines and more"),
        ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
        ("\x9b31m\x00\x07\x7f", r"\x9b31m\x00\x07\x7f"),
        ("right to left \u202e", r"right to left \u202e"),
        ("half a character \ud800", r"half a character \ud800"),
        ("a line of its own\u2028", "a line of its own "),
    ],
)
def test_control_characters_are_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown
    shown.encode()


def test_long_message_is_one_line_shortened_in_the_middle() -> None:
    error = BadInput("path: " + "\x1b\n" * 5000 + "; the fix")
    assert str(error).startswith("path: ")
    assert str(error).endswith("; the fix")
    assert str(error).isprintable()
    assert len(str(error)) < 5 * MAX_MESSAGE
    assert str(BadInput(str(error)))  # an error that was already formatted


def test_brief_is_the_first_line_or_the_type() -> None:
    assert brief(ValueError("one\ntwo")) == "one"
    assert brief(ValueError()) == "ValueError"
    assert len(brief(ValueError("x" * 5000))) == 200
    assert one_line("x" * 50, 30) == "x" * 20 + " ... " + "x" * 10
