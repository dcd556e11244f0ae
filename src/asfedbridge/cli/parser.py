"""The argument parser: all commands, and the options of list, data and bench."""

import argparse

from asfedbridge import __version__
from asfedbridge.cli.arguments import Commands, Parser, add_data_root, add_import, path, positive
from asfedbridge.cli.report_parser import add_analyze, add_costs, add_report, add_reproduce
from asfedbridge.cli.run_parser import add_flower, add_run, add_show
from asfedbridge.cli.trained_parser import add_evaluate, add_export, add_predict


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="asfedbridge",
        description="Federated learning for mixed fleets of artificial and spiking neural networks.",
        epilog="Start with: asfedbridge run",
    )
    parser.add_argument("--version", action="version", version=f"asfedbridge {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=Parser)
    for add in (
        add_run,
        add_show,
        add_list,
        add_data,
        add_reproduce,
        add_report,
        add_predict,
        add_evaluate,
        add_export,
        add_analyze,
        add_costs,
        add_flower,
        add_bench,
    ):
        add(commands)
    return parser


def add_list(commands: Commands) -> None:
    lists = commands.add_parser("list", help="list methods, models, data sets, recipes and other choices")
    topics = ["all", "settings", "methods", "models", "data", "recipes", "fleets", "experiments", "callbacks"]
    lists.add_argument(
        "topic",
        nargs="?",
        choices=[*topics, "kernels"],
        default="all",
        metavar="TOPIC",
        help=f"{', '.join(topics)} or kernels (default: all except settings)",
    )
    lists.add_argument(
        "--markdown",
        action="store_true",
        help="print the page docs/methods.md (methods) or the table of docs/models.md (models)",
    )
    add_import(lists)
    add_data_root(lists)


def add_data(commands: Commands) -> None:
    data = commands.add_parser("data", help="list, fetch or check data sets, or write some of their images")
    actions = data.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=Parser)
    for action, text in (
        ("list", "list the data sets and whether they are downloaded"),
        ("fetch", "download, verify and unpack a data set"),
        ("check", "verify a data set's files"),
        ("images", "write test images as PNG files, to view them or to try predict"),
    ):
        sub = actions.add_parser(action, help=text)
        if action != "list":
            sub.add_argument("name", metavar="NAME")
        if action == "images":
            sub.add_argument(
                "--out", type=path, required=True, metavar="DIR", help="folder for the files NUMBER-CLASS.png"
            )
            sub.add_argument("--count", type=positive, default=20, metavar="N", help="number of images (default: 20)")
        add_import(sub)
        add_data_root(sub)


def add_bench(commands: Commands) -> None:
    bench = commands.add_parser(
        "bench", help="compare the speed of this library and others on this machine (source checkout only)"
    )
    bench.add_argument("name", nargs="?", metavar="NAME", help="name of a benchmark (default: all)")
    bench.add_argument("--quick", action="store_true", help="tiny sizes, only to check that it runs")
    bench.add_argument("--repeats", type=positive, metavar="N", help="number of timed repeats")
    bench.add_argument("--threads", type=positive, metavar="N", help="threads per contender")
    bench.add_argument("--json", action="store_true", help="print the results as JSON on stdout")
