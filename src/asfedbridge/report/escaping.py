"""Escapes text for table cells in Markdown, CSV and LaTeX. HTML is escaped in markup.py."""

import re

from asfedbridge.core import printable

FORMULA = ("=", "+", "-", "@")  # a spreadsheet evaluates a cell that begins with one of these
NUMBERS = re.compile(r"[-+\d.,\[\] ±*%]*")  # -0.5, +1.00 [-0.2, 2.2]* or a dash is not a formula
MARKDOWN = re.compile(r"[\\`|<]|(?<=\])\(")  # characters of escapes, code, table columns, HTML and links
LATEX = {
    **{character: f"\\{character}" for character in "%_&#$\u007b\u007d"},
    "\\": r"\textbackslash{}",
    "^": r"\^{}",
    "~": r"\~{}",
    "±": r"$\pm$",
}


def to_markdown(text: str) -> str:
    return MARKDOWN.sub(lambda found: "&lt;" if found[0] == "<" else f"\\{found[0]}", printable(text))


def to_csv_cell(text: str) -> str:
    """An apostrophe before the text keeps a spreadsheet from evaluating it as a formula."""
    text = printable(text)
    return f"'{text}" if text.startswith(FORMULA) and not NUMBERS.fullmatch(text) else text


def to_latex(text: str) -> str:
    return "".join(LATEX.get(character, character) for character in printable(text))
