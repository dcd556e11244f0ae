"""The command line. Only what a command needs is imported, when it runs: help must not wait for torch."""

import argparse
import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from asfedbridge import __version__
from asfedbridge.core.errors import BadInput, Diverged, TooFewClients, WorkerLost

DONE, FAILED, BAD_USAGE, INTERRUPTED = 0, 1, 2, 130
MOST_WORKERS = 1024
SOURCE_HELP = "take SOURCE for the paper's data set NAME, e.g. cifar10=npz:PATH; may be repeated"


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line, not the whole usage."""
        raise BadInput(f"{message} (see {self.prog} --help)")


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="asfedbridge",
        description="Federated learning for mixed fleets of artificial and spiking neural networks.",
        epilog="Start with: asfedbridge run",
    )
    parser.add_argument("--version", action="version", version=f"asfedbridge {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=Parser)

    run = commands.add_parser(
        "run",
        help="train a federation (without arguments: the quick start)",
        epilog="example: asfedbridge run cpu data=npz:mine.npz method=fedavg rounds=20 --out runs/mine",
    )
    run.add_argument("what", nargs="*", metavar="RECIPE|FILE.toml KEY=VALUE", help="what to run, then changes to it")
    run.add_argument("--out", type=Path, metavar="DIR", help="run folder (default: a new one below runs/)")
    run.add_argument(
        "--engine",
        choices=["local", "pool", "flower"],
        default="local",
        help="clients in this process (default), in workers, or in SuperNodes of Flower on this machine",
    )
    run.add_argument("--workers", type=_count, metavar="N", help="worker processes of --engine pool (default: cores)")
    run.add_argument(
        "--min-clients", type=positive, metavar="N", help="--engine flower: uploads that make a round (default: all)"
    )
    run.add_argument("--round-timeout", type=_seconds, metavar="S", help="--engine flower: for a client's turn (3600)")
    run.add_argument(
        "--patience", type=_seconds, metavar="S", help="--engine flower: how long to wait for enough clients (600)"
    )
    run.add_argument("--resume", action="store_true", help="go on from the last checkpoint in --out")
    run.add_argument("--json", action="store_true", help="print the summary as JSON on stdout")
    _add_import(run)
    _add_data_root(run)

    show = commands.add_parser("show", help="print a full specification as TOML, ready to edit and run")
    show.add_argument("what", nargs="*", metavar="RECIPE|FILE.toml KEY=VALUE")
    _add_import(show)

    lists = commands.add_parser("list", help="what there is to choose from")
    topics = ["all", "methods", "models", "data", "recipes", "fleets", "experiments", "kernels"]
    lists.add_argument("topic", nargs="?", choices=topics, default="all", help="default: everything")
    lists.add_argument(
        "--markdown", action="store_true", help="methods: the page docs/methods.md; models: the table of docs/models.md"
    )
    _add_import(lists)
    _add_data_root(lists)

    data = commands.add_parser("data", help="list, fetch or check data sets")
    actions = data.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=Parser)
    for action, text in (
        ("list", "data sets and whether they are here"),
        ("fetch", "download, verify and unpack a data set"),
        ("check", "verify a data set's files"),
    ):
        sub = actions.add_parser(action, help=text)
        if action != "list":
            sub.add_argument("name", metavar="NAME")
        _add_data_root(sub)

    reproduce = commands.add_parser(
        "reproduce",
        help="a table or figure of the paper, its values beside ours",
        epilog="example: asfedbridge reproduce main --scale cpu --seeds 0,1,2 --data cifar10=npz:mine.npz",
    )
    reproduce.add_argument("experiment", metavar="EXPERIMENT", help="one of: asfedbridge list experiments")
    reproduce.add_argument("--scale", choices=["paper", "cpu", "smoke"], required=True, help="as large as you can bear")
    reproduce.add_argument("--seeds", type=_numbers, default=[42], metavar="0,1,2", help="mean and spread over these")
    reproduce.add_argument("--only", type=_names, metavar="ROW,...", help="these methods (or variants) only")
    reproduce.add_argument("--columns", type=_names, metavar="COLUMN,...", help="these data sets (or settings) only")
    reproduce.add_argument("--data", type=_pair, action="append", default=[], metavar="NAME=SOURCE", help=SOURCE_HELP)
    reproduce.add_argument("--out", type=Path, metavar="DIR", help="where runs and tables go (default: runs/SCALE)")
    reproduce.add_argument("--jobs", type=positive, metavar="N", help="runs at once (default: by cores and threads)")
    reproduce.add_argument("--dry-run", action="store_true", help="list the runs with an estimate of time and memory")
    _add_data_root(reproduce)

    report = commands.add_parser("report", help="compare finished runs: a table, a page, figures")
    report.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="run folders, or folders of them")
    report.add_argument("--out", type=Path, metavar="FILE.html", help="write a page that opens from disk, too")
    report.add_argument("--figures", type=Path, metavar="DIR", help="write figures as PNG and SVG, too")
    report.add_argument("--markdown", action="store_true", help="print Markdown")
    report.add_argument("--json", action="store_true", help="print the summaries as JSON")

    analyze = commands.add_parser("analyze", help="compare the clients of finished runs: CKA, MMD, gradients, rates")
    analyze.add_argument(
        "folders", nargs="+", type=Path, metavar="RUN_DIR", help="run folders; several share one MMD kernel"
    )
    analyze.add_argument("--json", action="store_true", help="print the analyses as JSON on stdout")
    _add_data_root(analyze)
    _add_import(analyze)

    costs = commands.add_parser(
        "costs",
        help="communication and computation of every method and kind of client (default: the paper's, CIFAR-100)",
        epilog="example: asfedbridge costs fleet=5*resnet18@0.5:ann,5*resnet18@0.5:snn T=8 classes=200 image_size=64",
    )
    costs.add_argument(
        "what",
        nargs="*",
        metavar="RECIPE|FILE.toml KEY=VALUE",
        help="what to count; a recipe, a file or data= reads data for their shape, else classes= and channels= give it",
    )
    costs.add_argument("--run", type=Path, metavar="RUN_DIR", help="count a finished run and its clients' spikes")
    costs.add_argument("--energy", action="store_true", help="add energy by the constants of docs/costs.md (45 nm)")
    costs.add_argument("--json", action="store_true", help="print everything as JSON on stdout")
    _add_data_root(costs)
    _add_import(costs)

    flower = commands.add_parser("flower", help="federations of real machines (docs/deployment.md)")
    does = flower.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=Parser)
    init = does.add_parser(
        "init",
        help="write a folder with the app that `flwr run` takes, and a script for certificates",
        epilog="example: asfedbridge flower init hospital cpu data=nodes fleet=2*resnet18@0.25:ann,2*resnet18@0.25:snn",
    )
    init.add_argument("folder", type=Path, metavar="DIR", help="a new folder")
    init.add_argument("what", nargs="*", metavar="RECIPE|FILE.toml KEY=VALUE", help="what to run, then changes to it")
    _add_import(init)
    tasks = does.add_parser(
        "tasks",
        help="take the place of flower-superexec: a turn is a fork of this process, which has loaded torch",
        epilog="example: asfedbridge flower tasks 127.0.0.1:9100 --insecure",
    )
    tasks.add_argument("address", metavar="HOST:PORT", help="of the SuperNode or SuperLink on this machine")
    secured = tasks.add_mutually_exclusive_group(required=True)
    secured.add_argument("--insecure", action="store_true", help="it has no certificate")
    secured.add_argument("--root-certificates", type=Path, metavar="FILE", help="of the authority of its certificate")

    bench = commands.add_parser("bench", help="time this machine: ours beside other libraries (source checkout only)")
    bench.add_argument("name", nargs="?", metavar="NAME", help="one benchmark (default: all)")
    bench.add_argument("--quick", action="store_true", help="tiny sizes: does it run, not how fast")
    bench.add_argument("--repeats", type=positive, metavar="N", help="timed repeats")
    bench.add_argument("--threads", type=positive, metavar="N", help="threads per contender")
    bench.add_argument("--json", action="store_true", help="print the results as JSON on stdout")
    return parser


def positive(text: str) -> int:
    value = int(text) if text.isdecimal() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number above 0")
    return value


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 10**7:
        raise argparse.ArgumentTypeError(f"'{text}' is no number of seconds; give 0 to 10000000")
    return value


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= MOST_WORKERS):
        raise argparse.ArgumentTypeError(f"'{text}' is no number of processes; give 1 to {MOST_WORKERS}")
    return int(text)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _numbers(text: str) -> list[int]:
    if not all(name.isascii() and name.isdigit() for name in _names(text)) or not _names(text):
        raise argparse.ArgumentTypeError(f"'{text}' are no seeds; give whole numbers with commas between, e.g. 0,1,2")
    return list(dict.fromkeys(int(name) for name in _names(text)))


def _pair(text: str) -> tuple[str, str]:
    name, equals, source = text.partition("=")
    if not (name and equals and source):
        raise argparse.ArgumentTypeError(f"'{text}' is no NAME=SOURCE, e.g. cifar10=npz:PATH")
    return name, source


def _add_import(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--import",
        dest="files",
        action="append",
        default=[],
        metavar="FILE.py",
        help="first run a Python file that registers models of your own (see docs/models.md)",
    )


def _add_data_root(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data-root", metavar="DIR", help="folder of downloaded data (default: $ASFEDBRIDGE_DATA, else the cache)"
    )


def resolve(words: Sequence[str]) -> Any:
    """A specification from the words of the command line: a recipe or a file, then key=value changes."""
    from asfedbridge.experiments.recipes import RECIPES, quickstart
    from asfedbridge.experiments.spec import apply_overrides, from_table
    from asfedbridge.experiments.toml import parse_assignment, read_toml

    named = [w for w in words if "=" not in w]
    overrides = dict(parse_assignment(w) for w in words if "=" in w)
    if len(named) > 1:
        raise BadInput(f"give one recipe or file, not {len(named)}: {' '.join(named)}")
    name = named[0] if named else "quickstart"
    if name.endswith(".toml"):
        return apply_overrides(from_table(read_toml(Path(name)), quickstart()), overrides)
    if name not in RECIPES:
        from asfedbridge.core.errors import nearest

        raise BadInput(f"'{name}' is no recipe and no .toml file{nearest(name, RECIPES)}")
    method = overrides.get("method", "as-fedbridge")
    return apply_overrides(RECIPES[name](method if isinstance(method, str) else "as-fedbridge"), overrides)


def command_run(args: argparse.Namespace) -> int:
    from asfedbridge.data.sources import data_root
    from asfedbridge.experiments.recipes import quickstart
    from asfedbridge.experiments.run import execute
    from asfedbridge.experiments.store import SUMMARY, read_spec
    from asfedbridge.report.progress import Progress
    from asfedbridge.report.tables import check_summary, client_rows, render_text, run_rows

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
    out = args.out or Path("runs") / f"{spec.method.name}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        root = data_root(args.data_root)
        if args.engine == "flower":
            from asfedbridge.experiments import loopback

            summary = loopback.execute(spec, out, root, _tell, args.resume, chosen)
        else:
            summary = execute(spec, out, root, Progress(), args.resume, args.engine, args.workers or 0)
    except KeyboardInterrupt:
        print(f"\ninterrupted; go on with: asfedbridge run --resume --out {out}", file=sys.stderr)
        return INTERRUPTED
    check_summary(summary, out / SUMMARY)  # of a run that had ended before, it is read from the disk
    table = f"\n{render_text(client_rows(summary))}\n\n{render_text(run_rows([summary]))}\n\nrun folder: {out}"
    print(table, file=sys.stderr if args.json else sys.stdout)
    if args.json:
        print(json.dumps(summary))
    return DONE


def command_show(args: argparse.Namespace) -> int:
    from asfedbridge.experiments.toml import write_toml

    print(write_toml(resolve(args.what)), end="")
    return DONE


def command_list(args: argparse.Namespace) -> int:
    from asfedbridge.report.listings import list_topic, methods_page, models_table

    pages = {"methods": methods_page, "models": models_table}
    if args.markdown and args.topic not in pages:
        raise BadInput(f"list {args.topic} --markdown: there is such a page of methods and models only; name one")
    print(pages[args.topic]() if args.markdown else list_topic(args.topic, args.data_root))
    return DONE


def command_data(args: argparse.Namespace) -> int:
    from asfedbridge.data import sources
    from asfedbridge.data.fetch import fetch
    from asfedbridge.report.listings import download_bar, list_topic

    if args.action == "list":
        print(list_topic("data", args.data_root))
        return DONE
    root = sources.data_root(args.data_root)
    if args.action == "fetch":
        fetch(args.name, root, download_bar(sys.stderr))
    print("\n".join(sources.check(args.name, root)))
    return DONE


def command_reproduce(args: argparse.Namespace) -> int:
    import torch

    from asfedbridge.data.sources import data_root
    from asfedbridge.experiments.catalogue import Bench, find_experiment, select
    from asfedbridge.experiments.costs import paper_costs
    from asfedbridge.experiments.reproduce import choose_width, measure, plan, play
    from asfedbridge.report.cost_tables import beside_paper
    from asfedbridge.report.experiment_page import write_experiment
    from asfedbridge.report.measures import measure_tables
    from asfedbridge.report.reproduction import collect

    experiment = find_experiment(args.experiment)
    out = args.out or Path("runs") / args.scale
    command = shlex.join(["asfedbridge", *args.words])
    cells = select(experiment.cells(Bench(args.scale, dict(args.data))), args.only, args.columns)
    jobs = plan(cells, args.seeds, out)
    at_once = args.jobs or choose_width(jobs, torch.cuda.is_available())
    if args.dry_run:
        from asfedbridge.report.estimate import estimate_rows
        from asfedbridge.report.tables import render_text

        print(render_text(estimate_rows(jobs, args.data_root, at_once, _tell)))
        return DONE
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        failures = play(jobs, data_root(args.data_root), at_once, _tell)
    except KeyboardInterrupt:
        print("\ninterrupted; the same command goes on", file=sys.stderr)
        return INTERRUPTED
    results = collect(cells, args.seeds, out, failures)
    measured = [("", beside_paper(experiment.name, paper_costs()))] if not cells else []
    if experiment.analysis:
        known = measure(jobs, data_root(args.data_root), _tell)
        measured = measure_tables(experiment, cells, args.seeds, out, known)
    page = write_experiment(out, experiment, results, args.seeds, command, measured)
    print(page, end="")
    _tell(f"written to {out / experiment.name}.html, .md, .csv and .tex")
    return FAILED if failures else DONE


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def command_report(args: argparse.Namespace) -> int:
    from asfedbridge.report.tables import find_summaries, render_markdown, render_text, run_rows

    summaries = find_summaries(args.folders)
    if args.json:
        print(json.dumps(summaries))
    else:
        print((render_markdown if args.markdown else render_text)(run_rows(summaries)))
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
    from asfedbridge.data.sources import data_root
    from asfedbridge.experiments.analyse import FILE, analyse
    from asfedbridge.report.analyses import render_analyses

    found = analyse(args.folders, data_root(args.data_root), lambda line: print(line, file=sys.stderr))
    written = "\n".join(f"written: {folder / FILE}" for folder in args.folders)
    print(f"{render_analyses(found)}\n\n{written}", file=sys.stderr if args.json else sys.stdout)
    if args.json:
        print(json.dumps(found))
    return DONE


def command_costs(args: argparse.Namespace) -> int:
    from asfedbridge.data.sources import data_root
    from asfedbridge.experiments.costs import cost_table, measure_run, shape_task
    from asfedbridge.experiments.run import prepare
    from asfedbridge.report.cost_tables import render_costs

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
    print(json.dumps(table) if args.json else render_costs(table))
    return DONE


def command_flower(args: argparse.Namespace) -> int:
    from asfedbridge.experiments.app_folder import write_deployment

    if args.action == "tasks":
        import asfedbridge.engines.flower.warm  # noqa: F401  before the first fork
        from asfedbridge.engines.flower.programs import serve_tasks

        serve_tasks(args.address, str(args.root_certificates) if args.root_certificates else None)
        return DONE
    write_deployment(args.folder, resolve(args.what))
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


def main(argv: Sequence[str] | None = None) -> int:
    try:
        args = build_parser().parse_args(argv)
        args.words = sys.argv[1:] if argv is None else list(argv)
        for file in getattr(args, "files", ()):
            from asfedbridge.models.registry import load_file

            load_file(file)
        return int(globals()[f"command_{args.command}"](args))
    except BadInput as error:
        print("asfedbridge:", *str(error).splitlines(), file=sys.stderr)
        return BAD_USAGE
    except Diverged as error:
        print(f"asfedbridge: {error}; rounds before this one are kept", file=sys.stderr)
        return FAILED
    except (WorkerLost, TooFewClients) as error:
        print(f"asfedbridge: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()
        return FAILED


def _interrupt(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
