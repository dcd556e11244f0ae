"""Commands that read finished runs or count operations: `report`, `analyze` and `costs`."""

import argparse
import json
import shlex
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from asfedbridge.cli.arguments import resolve
from asfedbridge.cli.terminal import DONE, tell
from asfedbridge.core import BadInput

if TYPE_CHECKING:
    from asfedbridge.runs import Summary


def command_report(args: argparse.Namespace) -> int:
    from asfedbridge.report.comparison import Entry, compare, comparison_records
    from asfedbridge.report.run_table import run_records, run_table
    from asfedbridge.report.settings import read_fields
    from asfedbridge.report.tables import find_runs, render_csv, render_latex, render_titled

    if args.watch and not args.out:
        raise BadInput("--watch updates the page of --out; add --out FILE.html")
    found = find_runs(args.folders, required=not args.out)
    compared = compare([Entry(summary, read_fields(folder)) for folder, summary in found.items()])
    if args.compare and not compared:
        tell("nothing to compare: no method has several seeds, and none has Standalone beside it on the same shards")
    if args.json:
        print(
            json.dumps(
                [one.to_table() for one in compared] if args.compare else [one.to_json() for one in found.values()]
            )
        )
    elif args.csv:
        print(render_csv(comparison_records(compared) if args.compare else run_records(found)), end="")
    elif compared or (found and not args.compare):
        tables = [] if args.compare else [run_table(found)]
        tables += [one.to_titled() for one in compared]
        shown = (render_latex(one) if args.latex else render_titled(one, args.markdown) for one in tables)
        print("\n\n".join(shown))
    if args.out:
        _write_page(args)
    if args.figures:
        from asfedbridge.report.figures import draw_figures
        from asfedbridge.report.runs import gather

        tell(f"figures: {draw_figures(gather(args.folders), args.figures)} files in {args.figures}")
    return DONE


def _write_page(args: argparse.Namespace) -> None:
    """Write the page once or, with ``--watch``, repeatedly until all runs have finished."""
    from asfedbridge.report.page import REFRESH, Lead, write_page
    from asfedbridge.report.runs import gather, gather_unfinished

    lead = Lead(command=shlex.join(["asfedbridge", *args.words]))
    while True:
        unfinished, left_out = gather_unfinished(args.folders)
        write_page(args.out, [*gather(args.folders, required=not unfinished), *unfinished], lead, left_out)
        if not (args.watch and unfinished):
            break
        time.sleep(REFRESH)
    hint = f" ({len(unfinished)} not finished; --watch updates the page until they are)" if unfinished else ""
    tell(f"report: {args.out}{hint}")


def summary_tables(summary: "Summary", out: Path) -> str:
    """The tables that `run` prints at the end of a run."""
    from asfedbridge.report.run_table import run_table
    from asfedbridge.report.tables import client_rows, render_text, render_titled

    return f"{render_text(client_rows(summary))}\n\n{render_titled(run_table({out: summary}), markdown=False)}"


def print_runs(found: "Mapping[Path, Summary]", stream: TextIO) -> None:
    """Print the tables that end a `run` of several runs, the same as those of `report` without options."""
    from asfedbridge.report.comparison import Entry, compare
    from asfedbridge.report.run_table import run_table
    from asfedbridge.report.settings import read_fields
    from asfedbridge.report.tables import render_titled

    compared = compare([Entry(summary, read_fields(folder)) for folder, summary in found.items()])
    tables = [run_table(found), *(one.to_titled() for one in compared)]
    print("\n" + "\n\n".join(render_titled(one, markdown=False) for one in tables), file=stream)


def command_analyze(args: argparse.Namespace) -> int:
    from asfedbridge.data import data_root
    from asfedbridge.report.analyses import render_analyses
    from asfedbridge.runs import analyse, file_name, open_run

    found = analyse(args.folders, data_root(args.data_root), tell, args.point)
    files = [folder / file_name(open_run(folder)[0], args.point) for folder in args.folders]
    written = "\n".join(f"written: {file}" for file in files)
    print(f"{render_analyses(found)}\n\n{written}", file=sys.stderr if args.json else sys.stdout)
    if args.json:
        print(json.dumps(found.to_json()))
    return DONE


def command_costs(args: argparse.Namespace) -> int:
    from asfedbridge.data import data_root
    from asfedbridge.report.cost_tables import render_costs
    from asfedbridge.runs import cost_table, measure_run, prepare, shape_task

    shape = {"classes": 100, "channels": 3}
    own = [w for w in args.what if w.partition("=")[0] in shape]
    words = [w for w in args.what if w not in own]
    reads_data = any("=" not in w or w.startswith("data=") for w in words)
    if args.run and args.what:
        raise BadInput(f"--run {args.run}: the run has its own settings; leave out {' '.join(args.what)}")
    if reads_data and own:
        raise BadInput(f"{own[0]}: the data determine it; leave it out, or leave out the recipe and data")
    for key, _, value in (w.partition("=") for w in own):
        if not (value.isdecimal() and len(value) <= 7 and 1 <= int(value) <= 10**6):
            raise BadInput(f"{key}={value} must be a whole number from 1 to 1000000")
        shape[key] = int(value)
    if args.run:
        spec, setting, spikes = measure_run(args.run, data_root(args.data_root))
        table = cost_table(spec, setting.task, setting.clients, spikes, args.energy)
    elif reads_data:
        spec = resolve(words if any("=" not in w for w in words) else ["paper", *words])
        setting = prepare(spec, data_root(args.data_root))
        table = cost_table(spec, setting.task, setting.clients, energy=args.energy)
    else:
        spec = resolve(["paper", *words])
        table = cost_table(spec, *shape_task(spec, **shape), energy=args.energy)
    print(json.dumps(table.to_json()) if args.json else render_costs(table))
    return DONE
