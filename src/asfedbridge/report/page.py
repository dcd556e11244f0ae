"""The report: one HTML page that needs nothing but itself, from any number of run folders."""

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from asfedbridge import __version__
from asfedbridge.core import BadInput
from asfedbridge.engines import write_atomic
from asfedbridge.report.markup import Markup, join, tag
from asfedbridge.report.overview import overview
from asfedbridge.report.palette import style_sheet
from asfedbridge.report.runs import Run, count_unfinished
from asfedbridge.report.sections import paper_rows, run_section, table, titled_table
from asfedbridge.report.tables import Titled

POINTS = 60  # of a curve on a page of few runs
FEWEST = 16  # on a page of many
SHARED = 4000  # points that the first curves of all runs have together: 20 each for 200 runs
BUDGET = 3_500_000  # bytes of details; runs that come after have their row and curve only
FEW = 4  # runs of which the first one is unfolded


@dataclass(frozen=True)
class Lead:
    """What stands above the runs."""

    title: str = ""
    text: str = ""
    command: str = ""
    tables: Sequence[Titled] = ()
    failures: Sequence[str] = ()


def write_page(file: Path, runs: Sequence[Run], lead: Lead, folders: Sequence[Path] = ()) -> None:
    """``folders``: where runs were sought, so that the page can tell of unfinished ones."""
    text = render_page(runs, lead, count_unfinished(folders))
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(file, text.encode("utf-8", "replace"))
    except OSError as error:
        raise BadInput(f"--out {file}: cannot write ({error.strerror}); give another file") from None


def render_page(runs: Sequence[Run], lead: Lead, unfinished: int = 0) -> str:
    script = _asset("page.js")
    most = max(FEWEST, min(POINTS, SHARED // max(1, len(runs))))
    details, left_out = _details(runs, most)
    count = f"{len(runs)} finished run{'s' * (len(runs) != 1)}"
    waiting = f", {unfinished} unfinished left out" if unfinished else ""
    only = runs[0] if len(runs) == 1 else None
    title = lead.title or (f"{only.summary.method} on {only.data}" if only else f"{len(runs)} runs compared")
    body = join(
        tag(
            "header",
            tag("h1", title),
            tag("p", f"{count}{waiting}. Accuracies are percentages of test images.", class_="quiet") if runs else None,
            tag("button", "Theme: auto", type="button", id="theme", hidden=True),
        ),
        tag(
            "main",
            tag("p", lead.text) if lead.text else None,
            tag("pre", lead.command) if lead.command else None,
            [titled_table(one) for one in lead.tables],
            _failures(lead.failures),
            overview(runs, most),
            tag("h2", "Run by run" if len(runs) > 1 else "The run") if runs else None,
            tag("div", details, id="details"),
        ),
        tag("footer", tag("p", _bounds(runs, most, left_out)), tag("p", f"asfedbridge {__version__}")),
        tag("script", Markup(script)),
    )
    # Should text from a file ever come through unescaped, nothing in it would run: only this one script may.
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{allowed}'"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("title", title),
        tag("link", rel="icon", href="data:,"),
        tag("style", Markup(f"{style_sheet()}\n{_asset('page.css')}")),
    )
    return f"<!doctype html>\n{tag('html', head, tag('body', body), lang='en')}\n"


def _details(runs: Sequence[Run], most: int) -> tuple[list[Markup], int]:
    """A section for each run while there is room, and for how many there was none."""
    sections: list[Markup] = []
    size, drawn = 0, dict[str, str]()
    for index, run in enumerate(runs):
        content = join(_result(run), run_section(run, most, drawn))
        size += len(content)
        if size > BUDGET and sections:
            return sections, len(runs) - index
        summary = run.summary
        words = f"{run.data}, {run.split}, seed {summary.seed}, {summary.played} rounds"
        head = tag("summary", tag("h3", summary.method), tag("span", words, class_="quiet"))
        sections.append(
            tag("details", head, content, class_="run", id=f"run-{index}", open=index == 0 and len(runs) <= FEW)
        )
    return sections, 0


def _result(run: Run) -> Markup:
    where = f"Paper: {run.cell}." if run.cell else None
    return join(table(paper_rows(run)), tag("p", where, class_="quiet") if where else None)


def _failures(failures: Sequence[str]) -> Markup | None:
    return join(tag("h2", "Failed"), tag("ul", [tag("li", text) for text in failures])) if failures else None


def _bounds(runs: Sequence[Run], most: int, left_out: int) -> str:
    longest = max((run.summary.played for run in runs), default=0)
    words = [f"Curves have at most {most} points; the longest run has {longest} rounds."] if longest > most else []
    if left_out:
        words.append(f"Details of the last {left_out} runs are left out to keep the page small; name fewer folders.")
    return " ".join(words)


def _asset(name: str) -> str:
    return (files("asfedbridge.report") / "assets" / name).read_text(encoding="utf-8")
