"""The report: one self-contained HTML page for any number of runs."""

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from asfedbridge import __version__
from asfedbridge.core import BadInput
from asfedbridge.engines import write_atomic
from asfedbridge.report.comparison import Entry, compare
from asfedbridge.report.headline import headlines
from asfedbridge.report.html_tables import table, titled_table
from asfedbridge.report.markup import Markup, join, tag
from asfedbridge.report.overview import overview
from asfedbridge.report.palette import style_sheet
from asfedbridge.report.runs import Run, describe_settings
from asfedbridge.report.sections import result_rows, run_section
from asfedbridge.report.tables import Titled

MIN_POINTS, MAX_POINTS = 16, 60  # points of a curve
TOTAL_POINTS = 4000  # divided among the runs: 20 points per curve for 200 runs
MAX_DETAILS = 3_300_000  # characters; further runs have only their row and curve
REFRESH = 10  # seconds between reloads of a page with unfinished runs
MAX_UNFOLDED = 4  # with more runs, the first one is folded too


@dataclass(frozen=True)
class Lead:
    """The part of the page above the runs."""

    title: str = ""
    text: str = ""
    command: str = ""
    tables: Sequence[Titled] = ()
    failures: Sequence[str] = ()


def write_page(file: Path, runs: Sequence[Run], lead: Lead, left_out: int = 0) -> None:
    """``left_out``: runs that cannot be shown, which the page counts."""
    text = render_page(runs, lead, left_out)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(file, text.encode("utf-8", "replace"))
    except OSError as error:
        raise BadInput(f"--out {file}: cannot write ({error.strerror}); give another file") from None


def render_page(runs: Sequence[Run], lead: Lead, left_out: int = 0) -> str:
    """A page with unfinished runs reloads itself."""
    script = _asset("page.js")
    max_points = max(MIN_POINTS, min(MAX_POINTS, TOTAL_POINTS // max(1, len(runs))))
    details, undetailed = _details(runs, max_points)
    finished = [run for run in runs if run.finished]
    live = len(finished) < len(runs)
    compared = compare([Entry(run.summary, run.fields) for run in finished])
    title = lead.title or _title(runs)
    body = join(
        tag(
            "header",
            tag("h1", title),
            [tag("p", words, class_="headline") for words in headlines(runs, compared)],
            tag("p", _count(len(finished), len(runs) - len(finished), left_out), class_="quiet") if runs else None,
            tag("button", "Theme: auto", type="button", id="theme", hidden=True),
        ),
        tag(
            "main",
            tag("p", lead.text) if lead.text else None,
            tag("pre", lead.command) if lead.command else None,
            [titled_table(one) for one in lead.tables],
            _failures(lead.failures),
            overview(runs, compared, max_points),
            tag("h2", "Run by run" if len(runs) > 1 else "The run") if runs else None,
            tag("div", details, id="details"),
        ),
        tag("footer", tag("p", _bounds(runs, max_points, undetailed)), tag("p", f"asfedbridge {__version__}")),
        tag("script", Markup(script)),
    )
    # Second line of defence after escaping: the browser runs no script but this one.
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{allowed}'"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("noscript", tag("meta", http_equiv="refresh", content=str(REFRESH))) if live else None,
        tag("title", title),
        tag("link", rel="icon", href="data:,"),
        tag("style", Markup(f"{style_sheet()}\n{_asset('page.css')}")),
    )
    return (
        f"<!doctype html>\n{tag('html', head, tag('body', body), lang='en', data_refresh=REFRESH if live else None)}\n"
    )


def _title(runs: Sequence[Run]) -> str:
    methods, data = {run.summary.method for run in runs}, {run.data for run in runs}
    if len(data) > 1 or not runs:
        return f"{len(runs)} runs compared"
    return f"{methods.pop() if len(methods) == 1 else f'{len(methods)} methods'} on {data.pop()}"


def _count(finished: int, unfinished: int, left_out: int) -> str:
    parts = [f"{finished} finished run{'s' * (finished != 1)}"]
    parts += [f"{unfinished} not finished (the page reloads itself every {REFRESH} seconds)"] if unfinished else []
    parts += [f"{left_out} not finished and left out (unknown method or model)"] if left_out else []
    return f"{', '.join(parts)}. Accuracies are percentages of test images."


def _details(runs: Sequence[Run], max_points: int) -> tuple[list[Markup], int]:
    """The sections of the runs that fit into ``MAX_DETAILS``, and the number of runs left out."""
    sections: list[Markup] = []
    size, drawn = 0, dict[str, str]()
    for index, (run, setting) in enumerate(zip(runs, describe_settings(runs), strict=True)):
        content = join(_result(run), run_section(run, max_points, drawn))
        size += len(content)
        if size > MAX_DETAILS and sections:
            return sections, len(runs) - index
        summary = run.summary
        played = f"{'stopped early after ' if run.stopped else ''}{summary.course} rounds"
        words = f"{run.data}, {run.split}, seed {summary.seed}, {played}{setting and f', {setting}'}"
        head = tag("summary", tag("h3", summary.method), tag("span", words, class_="quiet"))
        sections.append(
            tag(
                "details", head, content, class_="run", id=f"run-{index}", open=index == 0 and len(runs) <= MAX_UNFOLDED
            )
        )
    return sections, 0


def _result(run: Run) -> Markup:
    where = f"Paper: {run.cell}." if run.cell else None
    return join(table(result_rows(run)), tag("p", where, class_="quiet") if where else None)


def _failures(failures: Sequence[str]) -> Markup | None:
    return join(tag("h2", "Failed"), tag("ul", [tag("li", text) for text in failures])) if failures else None


def _bounds(runs: Sequence[Run], max_points: int, left_out: int) -> str:
    longest = max((run.summary.played for run in runs), default=0)
    words = []
    if longest > max_points:
        words.append(f"Curves have at most {max_points} points; the longest run has {longest} rounds.")
    if left_out:
        words.append(f"Details of the last {left_out} runs are left out to keep the page small; name fewer folders.")
    return " ".join(words)


def _asset(name: str) -> str:
    return (files("asfedbridge.report") / "assets" / name).read_text(encoding="utf-8")
