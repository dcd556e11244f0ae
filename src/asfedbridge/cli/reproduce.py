"""`asfedbridge reproduce`."""

import argparse
import shlex
from pathlib import Path

from asfedbridge.cli.terminal import DONE, FAILED, INTERRUPTED, end_like_ctrl_c, print_if_possible, tell
from asfedbridge.core import BadInput


def command_reproduce(args: argparse.Namespace) -> int:
    import torch

    from asfedbridge.data import data_root
    from asfedbridge.paper.experiments import find_experiment
    from asfedbridge.paper.grid import Bench, add_own, check_settings, choose_client, select
    from asfedbridge.paper.reproduce import choose_width, measure, measure_costs, plan, play, read_courses
    from asfedbridge.report.analysis_tables import course_tables, measure_tables
    from asfedbridge.report.cost_tables import experiment_costs
    from asfedbridge.report.experiment_page import write_experiment
    from asfedbridge.report.experiment_tables import collect
    from asfedbridge.runs import MEASURES, parse_assignment

    experiment = find_experiment(args.experiment)
    out = args.out or Path("runs") / args.scale
    bench = Bench(args.scale, dict(args.data), dict(parse_assignment(word) for word in args.settings))
    command = shlex.join(["asfedbridge", *args.words])
    bench = add_own(bench, experiment, [*(args.only or ()), *(args.columns or ()), *args.add])
    rows = [*(args.only or experiment.rows), *(n for n in bench.methods if args.only or experiment.rows)]
    columns = [*args.columns, *bench.data] if args.columns else None
    cells = select(experiment.cells(bench), rows, columns)
    for name in args.add:
        if name not in {word for c in cells for word in (c.row, c.column)}:
            raise BadInput(
                f"--add {name}: not a registered method or data set, or {experiment.name} cannot be extended"
            )
    if args.settings and not cells:
        raise BadInput(f"--set {args.settings[0]}: {experiment.name} has no runs; use asfedbridge costs KEY=VALUE")
    for line in check_settings(bench, cells):
        tell(line)
    if args.point and experiment.analysis not in MEASURES:
        raise BadInput(
            f"--point {args.point}: {experiment.name} has no evaluation points; only {', '.join(MEASURES)} do"
        )
    if args.measure and not args.dry_run:
        raise BadInput("--measure works only with --dry-run; add it, or leave out --measure")
    client = choose_client(experiment, cells, args.client)
    jobs = plan(cells, args.seeds, out)
    at_once = args.jobs or choose_width(jobs, torch.cuda.is_available())
    if args.dry_run:
        from asfedbridge.report.estimate import estimate_rows, list_rows
        from asfedbridge.report.tables import render_text

        print(render_text(estimate_rows(jobs, args.data_root, at_once, tell) if args.measure else list_rows(jobs)))
        if not args.measure:
            tell(f"{len(jobs)} runs, {at_once} at once; --measure estimates time and memory")
        return DONE
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"--out {out}: cannot create the folder ({error.strerror}); give another one") from None
    end_like_ctrl_c()
    try:
        failures = play(jobs, data_root(args.data_root), at_once, tell)
    except KeyboardInterrupt:
        print_if_possible("interrupted; repeat the command to continue")
        return INTERRUPTED
    results = collect(cells, args.seeds, out, failures)
    measured = []
    if experiment.costs:
        found = measure_costs(jobs, data_root(args.data_root), tell)
        measured = experiment_costs(experiment, cells, args.seeds, out, found)
    if experiment.analysis == "diagnostics":
        measured += course_tables(cells, args.seeds, out, read_courses(jobs))
    elif experiment.analysis:
        known = measure(jobs, data_root(args.data_root), tell, args.point)
        measured += measure_tables(experiment, cells, args.seeds, out, known, client)
    page = write_experiment(out, experiment, results, args.seeds, command, measured)
    print(page, end="")
    tell(f"written to {out / experiment.name}.html, .md, .csv and .tex")
    return FAILED if failures else DONE
