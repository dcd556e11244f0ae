"""The words of the command line, and what each may be."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from asfedbridge import __version__
from asfedbridge.core import BadInput

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction["Parser"]  # a type in annotations only: argparse has no name for it

MOST_WORKERS = 1024
POINTS = ("trained", "received")
POINT_HELP = "clients after local training, or with the last aggregate (default: where the method is judged)"
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
    for add in (_run, _show, _list, _data, _reproduce, _report, _analyze, _costs, _flower, _bench):
        add(commands)
    return parser


def _run(commands: "Commands") -> None:
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
    run.add_argument(
        "--callback",
        dest="callbacks",
        action="append",
        default=[],
        metavar="NAME[:KEY=VALUE,...]",
        help="observe the run, e.g. early-stopping:patience=5 or mlflow; may be repeated (docs/callbacks.md)",
    )
    run.add_argument("--json", action="store_true", help="print the summary as JSON on stdout")
    _add_import(run)
    _add_data_root(run)


def _show(commands: "Commands") -> None:
    show = commands.add_parser("show", help="print a full specification as TOML, ready to edit and run")
    show.add_argument("what", nargs="*", metavar="RECIPE|FILE.toml KEY=VALUE")
    _add_import(show)


def _list(commands: "Commands") -> None:
    lists = commands.add_parser("list", help="what there is to choose from")
    topics = ["all", "methods", "models", "data", "recipes", "fleets", "experiments", "callbacks", "kernels"]
    lists.add_argument("topic", nargs="?", choices=topics, default="all", help="default: everything")
    lists.add_argument(
        "--markdown", action="store_true", help="methods: the page docs/methods.md; models: the table of docs/models.md"
    )
    _add_import(lists)
    _add_data_root(lists)


def _data(commands: "Commands") -> None:
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
        _add_import(sub)
        _add_data_root(sub)


def _reproduce(commands: "Commands") -> None:
    reproduce = commands.add_parser(
        "reproduce",
        help="a table or figure of the paper, its values beside ours",
        epilog="example: asfedbridge reproduce main --scale cpu --seeds 0,1,2 --data cifar10=npz:mine.npz",
    )
    reproduce.add_argument("experiment", metavar="EXPERIMENT", help="one of: asfedbridge list experiments")
    reproduce.add_argument("--scale", choices=["paper", "cpu", "smoke"], required=True, help="experiment size")
    reproduce.add_argument(
        "--seeds", type=_numbers, default=[42], metavar="0,1,2", help="means and intervals over these"
    )
    reproduce.add_argument(
        "--only", type=_names, metavar="ROW,...", help="these methods (or variants) only; methods of your own, too"
    )
    reproduce.add_argument(
        "--columns", type=_names, metavar="COLUMN,...", help="these data sets (or settings) only; your own, too"
    )
    reproduce.add_argument(
        "--add",
        type=_names,
        default=[],
        metavar="NAME,...",
        help="methods of your own as further rows, data sets as further columns",
    )
    _add_import(reproduce)
    reproduce.add_argument("--data", type=_pair, action="append", default=[], metavar="NAME=SOURCE", help=SOURCE_HELP)
    reproduce.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change the specification of every run, e.g. rounds=5 or method.mu=0.1; may be repeated",
    )
    reproduce.add_argument("--out", type=Path, metavar="DIR", help="where runs and tables go (default: runs/SCALE)")
    reproduce.add_argument("--jobs", type=positive, metavar="N", help="runs at once (default: by cores and threads)")
    reproduce.add_argument("--point", choices=POINTS, help=f"cka, gradients, mmd: {POINT_HELP}")
    reproduce.add_argument("--client", type=_client, metavar="ID", help="rates: show this SNN client, too (default: 9)")
    reproduce.add_argument("--dry-run", action="store_true", help="list the runs with an estimate of time and memory")
    _add_data_root(reproduce)


def _report(commands: "Commands") -> None:
    report = commands.add_parser("report", help="compare finished runs: a table, a page, figures")
    report.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="run folders, or folders of them")
    report.add_argument("--out", type=Path, metavar="FILE.html", help="write a page that opens from disk, too")
    report.add_argument("--figures", type=Path, metavar="DIR", help="write figures as PNG and SVG, too")
    report.add_argument("--compare", action="store_true", help="print only the comparisons of methods over seeds")
    report.add_argument("--markdown", action="store_true", help="print Markdown")
    report.add_argument("--json", action="store_true", help="print a JSON list: summaries, or comparisons (--compare)")


def _analyze(commands: "Commands") -> None:
    analyze = commands.add_parser("analyze", help="compare the clients of finished runs: CKA, MMD, gradients, rates")
    analyze.add_argument(
        "folders", nargs="+", type=Path, metavar="RUN_DIR", help="run folders; several share one MMD kernel"
    )
    analyze.add_argument("--point", choices=POINTS, help=POINT_HELP)
    analyze.add_argument("--json", action="store_true", help="print the analyses as JSON on stdout")
    _add_data_root(analyze)
    _add_import(analyze)


def _costs(commands: "Commands") -> None:
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


def _flower(commands: "Commands") -> None:
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


def _bench(commands: "Commands") -> None:
    bench = commands.add_parser("bench", help="time this machine: ours beside other libraries (source checkout only)")
    bench.add_argument("name", nargs="?", metavar="NAME", help="one benchmark (default: all)")
    bench.add_argument("--quick", action="store_true", help="tiny sizes: does it run, not how fast")
    bench.add_argument("--repeats", type=positive, metavar="N", help="timed repeats")
    bench.add_argument("--threads", type=positive, metavar="N", help="threads per contender")
    bench.add_argument("--json", action="store_true", help="print the results as JSON on stdout")


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


def _client(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"'{text}' is not the id of a client; give a whole number, e.g. 9")
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
        help="first run a Python file that registers methods, models or data of your own; may be repeated",
    )


def _add_data_root(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data-root", metavar="DIR", help="folder of downloaded data (default: $ASFEDBRIDGE_DATA, else the cache)"
    )
