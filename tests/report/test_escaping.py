import csv
import io

import pytest

from asfedbridge.report.escaping import to_csv_cell, to_latex, to_markdown
from asfedbridge.report.tables import render_csv


def test_markdown_keeps_a_name_in_its_cell() -> None:
    assert to_markdown("a|b") == r"a\|b"
    assert to_markdown(r"a\|b") == r"a\\\|b"
    assert to_markdown("`<script>`") == r"\`&lt;script>\`"
    assert to_markdown("![x](http://y)\n# z") == r"![x]\(http://y) # z"
    assert to_markdown("+1.25 [0.50, 2.00]*") == "+1.25 [0.50, 2.00]*"


@pytest.mark.parametrize("text", ["=1+1", "+cmd|' /C calc'!A0", "-1+HYPERLINK(1)", "@SUM(A1)", "=\x09x"])
def test_csv_has_no_formula(text: str) -> None:
    (row,) = csv.reader(io.StringIO(render_csv([[text, "x"]])))
    assert row[0].startswith("'")
    assert row[1] == "x"


@pytest.mark.parametrize("text", ["-", "-0.5000", "+1.00 [-0.20, 2.20]*", "+1.0000 -2.0000", "57.21 ± 0.30", "", "a=b"])
def test_csv_keeps_numbers_and_words(text: str) -> None:
    assert to_csv_cell(text) == text


def test_latex_escapes_commands_in_names() -> None:
    assert to_latex(r"\input{/etc/passwd}") == r"\textbackslash{}input\{/etc/passwd\}"
    assert to_latex("a_b & 50 % #1 $x$ ^2 ~ ±") == r"a\_b \& 50 \% \#1 \$x\$ \^{}2 \~{} $\pm$"
    assert to_latex("x\x1b\n") == r"x\textbackslash{}x1b "
