"""What each command does; returns its exit code."""

import argparse
import json
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from asfedbridge.core import BadInput

DONE, FAILED, BAD_USAGE, INTERRUPTED = 0, 1, 2, 130


def resolve(words: Sequence[str]) -> Any:
    """A specification from the words of the command line: a recipe or a file, then key=value changes.

    A recipe applies the settings of the data set; a file is used as it is.
    """
    from asfedbridge.runs import parse_assignment, recipe

    named = [w for w in words if "=" not in w]
    if len(named) > 1:
        raise BadInput(f"give one recipe or file, not {len(named)}: {' '.join(named)}")
    return recipe(named[0] if named else "quickstart", dict(parse_assignment(w) for w in words if "=" in w))


def command_run(args: argparse.Namespace) -> int:
    from asfedbridge.data import data_root
    from asfedbridge.report.progress import Progress
    from asfedbridge.report.tables import client_rows, render_text, run_rows
    from asfedbridge.runs import default_folder, execute, make_callback, quickstart, read_spec

    if args.workers and args.engine != "pool":
        raise BadInput(f"--workers {args.workers}: the {args.engine} engine has none; add --engine pool")
    chosen = {name: getattr(args, name.replace("-", "_")) for name in ("min-clients", "round-timeout", "patience")}
    chosen = {name: value for name, value in chosen.items() if value is not None}
    if chosen and args.engine != "flower":
        name = next(iter(chosen))
        raise BadInput(f"--{name} {chosen[name]:g}: the {args.engine} engine has none; add --engine flower")
    if args.resume and args.out is None:
        raise BadInput("--resume needs --out DIR, the folder of the run to go on with")
    if args.resume and not args.what:
        spec = read_spec(args.out, base=quickstart())
        if spec is None:
            raise BadInput(f"--out {args.out}: there is no run to resume here; name a recipe to begin one")
    else:
        spec = resolve(args.what)
    out = args.out or default_folder(spec)
    callbacks = [make_callback(text) for text in args.callbacks]
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        root = data_root(args.data_root)
        if args.engine == "flower":
            from asfedbridge.deploy import local_run

            chosen["callbacks"] = ";".join(args.callbacks)
            summary = local_run.execute(spec, out, root, _tell, args.resume, chosen)
        else:
            summary = execute(spec, out, root, [Progress(), *callbacks], args.resume, args.engine, args.workers or 0)
    except KeyboardInterrupt:
        print(f"\ninterrupted; go on with: asfedbridge run --resume --out {out}", file=sys.stderr)
        return INTERRUPTED
    table = f"\n{render_text(client_rows(summary))}\n\n{render_text(run_rows([summary]))}\n\nrun folder: {out}"
    print(table, file=sys.stderr if args.json else sys.stdout)
    if args.json:
        print(json.dumps(summary.to_json()))
    return DONE


def command_show(args: argparse.Namespace) -> int:
    from asfedbridge.runs import write_toml

    print(write_toml(resolve(args.what), comments=True), end="")
    return DONE


def command_list(args: argparse.Namespace) -> int:
    from asfedbridge.report.listings import list_topic, methods_page, models_table

    pages = {"methods": methods_page, "models": models_table}
    if args.markdown and args.topic not in pages:
        raise BadInput(f"list {args.topic} --markdown: there is such a page of methods and models only; name one")
    print(pages[args.topic]() if args.markdown else list_topic(args.topic, args.data_root))
    return DONE


def command_data(args: argparse.Namespace) -> int:
    from asfedbridge.data import check, data_root, fetch
    from asfedbridge.report.listings import download_bar, list_topic

    if args.action == "list":
        print(list_topic("data", args.data_root))
        return DONE
    root = data_root(args.data_root)
    if args.action == "fetch":
        fetch(args.name, root, download_bar(sys.stderr))
    print("\n".join(check(args.name, root)))
    return DONE


def command_reproduce(args: argparse.Namespace) -> int:
    import torch

    from asfedbridge.data import data_root
    from asfedbridge.paper.experiments import Bench, add_own, check_settings, choose_client, find_experiment, select
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
            raise BadInput(f"--add {name}: no registered method or data set, or {experiment.name} takes none")
    if args.settings and not cells:
        raise BadInput(f"--set {args.settings[0]}: {experiment.name} has no runs; use asfedbridge costs KEY=VALUE")
    for line in check_settings(bench, cells):
        _tell(line)
    if args.point and experiment.analysis not in MEASURES:
        raise BadInput(f"--point {args.point}: {experiment.name} is no analysis at a point; {', '.join(MEASURES)} are")
    client = choose_client(experiment, cells, args.client)
    jobs = plan(cells, args.seeds, out)
    at_once = args.jobs or choose_width(jobs, torch.cuda.is_available())
    if args.dry_run:
        from asfedbridge.report.estimate import estimate_rows
        from asfedbridge.report.tables import render_text

        print(render_text(estimate_rows(jobs, args.data_root, at_once, _tell)))
        return DONE
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"--out {out}: cannot be a folder ({error.strerror}); give another one") from None
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        failures = play(jobs, data_root(args.data_root), at_once, _tell)
    except KeyboardInterrupt:
        print("\ninterrupted; the same command goes on", file=sys.stderr)
        return INTERRUPTED
    results = collect(cells, args.seeds, out, failures)
    measured = []
    if experiment.costs:
        found = measure_costs(jobs, data_root(args.data_root), _tell)
        measured = experiment_costs(experiment, cells, args.seeds, out, found)
    if experiment.analysis == "diagnostics":
        measured += course_tables(cells, args.seeds, out, read_courses(jobs))
    elif experiment.analysis:
        known = measure(jobs, data_root(args.data_root), _tell, args.point)
        measured += measure_tables(experiment, cells, args.seeds, out, known, client)
    page = write_experiment(out, experiment, results, args.seeds, command, measured)
    print(page, end="")
    _tell(f"written to {out / experiment.name}.html, .md, .csv and .tex")
    return FAILED if failures else DONE


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def command_report(args: argparse.Namespace) -> int:
    from asfedbridge.report.comparison import Entry, compare
    from asfedbridge.report.settings import read_fields
    from asfedbridge.report.tables import Titled, find_runs, render_titled, run_rows

    found = find_runs(args.folders)
    compared = compare([Entry(summary, read_fields(folder)) for folder, summary in found.items()])
    if args.compare and not compared:
        _tell("nothing to compare: no method has several seeds, and none has Standalone beside it on the same shards")
    if args.json:
        print(
            json.dumps(
                [one.to_table() for one in compared] if args.compare else [one.to_json() for one in found.values()]
            )
        )
    elif compared or not args.compare:
        tables = [] if args.compare else [Titled("", run_rows(list(found.values())))]
        tables += [one.to_titled() for one in compared]
        print("\n\n".join(render_titled(one, args.markdown) for one in tables))
    if args.out or args.figures:
        from asfedbridge.report.page import Lead, write_page
        from asfedbridge.report.runs import gather

        runs = gather(args.folders)
        if args.out:
            write_page(args.out, runs, Lead(command=shlex.join(["asfedbridge", *args.words])), args.folders)
            _tell(f"report: {args.out}")
        if args.figures:
            from asfedbridge.report.figures import draw_figures

            _tell(f"figures: {draw_figures(runs, args.figures)} files in {args.figures}")
    return DONE


def command_analyze(args: argparse.Namespace) -> int:
    from asfedbridge.data import data_root
    from asfedbridge.report.analyses import render_analyses
    from asfedbridge.runs import analyse, file_name, open_run

    found = analyse(args.folders, data_root(args.data_root), _tell, args.point)
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
        raise BadInput(f"{own[0]}: the data decide that; leave it out, or leave out the recipe and data")
    for key, _, value in (w.partition("=") for w in own):
        if not (value.isdecimal() and 1 <= int(value) <= 10**6):
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


def command_flower(args: argparse.Namespace) -> int:
    from asfedbridge.deploy.app_folder import write_deployment

    if args.action == "tasks":
        import asfedbridge.deploy.preload  # noqa: F401  before the first fork
        from asfedbridge.deploy.programs import run_program

        run_program("tasks", [args.address, *([str(args.root_certificates)] if args.root_certificates else [])])
        return DONE
    write_deployment(args.folder, resolve(args.what), args.files)
    _tell(f"written: {args.folder}; go on with docs/deployment.md")
    return DONE


def command_bench(args: argparse.Namespace) -> int:
    from asfedbridge.report.bench import choose_scripts, run_script

    signal.signal(signal.SIGTERM, _interrupt)
    words = [f"--{flag}" for flag in ("quick", "json") if getattr(args, flag)]
    words += [f"--{key}={value}" for key in ("repeats", "threads") if (value := getattr(args, key)) is not None]
    finished = {name: run_script(path, words, args.json) for name, path in choose_scripts(args.name).items()}
    if args.json:
        results = {name: result for name, (_, result) in finished.items()}
        print(json.dumps(results[args.name] if args.name else results))
    return max(code for code, _ in finished.values())


def _interrupt(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt
