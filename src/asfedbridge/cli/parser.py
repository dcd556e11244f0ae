"""The words of the command line, and what each may be."""

import argparse
from typing import TYPE_CHECKING, NoReturn

from asfedbridge import __version__
from asfedbridge.cli.arguments import (
    add_data_root,
    add_import,
    add_trained,
    client_id,
    data_source,
    names,
    path,
    positive,
    seconds,
    seeds,
    worker_count,
)
from asfedbridge.core import BadInput

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction["Parser"]  # a type in annotations only: argparse has no name for it

POINTS = ("trained", "received")
POINT_HELP = "clients after local training, or with the last aggregate (default: where the method is judged)"
TRAINED_HELP = "a run folder that has ended, a node's state folder, or a client file"
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
    for add in (
        _run,
        _show,
        _list,
        _data,
        _reproduce,
        _report,
        _predict,
        _evaluate,
        _export,
        _analyze,
        _costs,
        _flower,
        _bench,
    ):
        add(commands)
    return parser


def _run(commands: "Commands") -> None:
    run = commands.add_parser(
        "run",
        help="train a federation (without arguments: the quick start)",
        epilog=(
            "examples: asfedbridge run cpu data=npz:mine.npz method=fedavg rounds=20 --out runs/mine; "
            "asfedbridge run cpu method=fml,standalone alpha=0.1,1 --seeds 0,1,2 --out runs/sweep"
        ),
    )
    run.add_argument(
        "what",
        nargs="*",
        metavar="RECIPE|FILE.toml KEY=VALUE",
        help="what to run, then changes to it; a list such as rounds=10,20 makes one run for each value",
    )
    run.add_argument(
        "--seeds", type=seeds, default=[], metavar="0,1,2", help="one run for each seed, and means over them"
    )
    run.add_argument(
        "--out", type=path, metavar="DIR", help="run folder, or folder of several (default: a new one below runs/)"
    )
    run.add_argument(
        "--jobs", type=positive, metavar="N", help="of several runs, how many at once (default: by cores and threads)"
    )
    run.add_argument(
        "--engine",
        choices=["local", "pool", "flower"],
        default="local",
        help="clients in this process (default), in workers, or in SuperNodes of Flower on this machine",
    )
    run.add_argument(
        "--workers", type=worker_count, metavar="N", help="worker processes of --engine pool (default: cores)"
    )
    run.add_argument(
        "--min-clients", type=positive, metavar="N", help="--engine flower: uploads that make a round (default: half)"
    )
    run.add_argument("--round-timeout", type=seconds, metavar="S", help="--engine flower: for a client's turn (3600)")
    run.add_argument(
        "--patience", type=seconds, metavar="S", help="--engine flower: how long to wait for enough clients (600)"
    )
    run.add_argument(
        "--allow-rollback",
        action="store_true",
        default=None,
        help="--engine flower: nodes go back behind the server's last checkpoint, if it was lost",
    )
    run.add_argument("--resume", action="store_true", help="go on from the last checkpoint in --out")
    run.add_argument(
        "--from-round", type=positive, metavar="N", help="--resume: go back to the checkpoint after round N"
    )
    run.add_argument(
        "--callback",
        dest="callbacks",
        action="append",
        default=[],
        metavar="NAME[:KEY=VALUE,...]",
        help="observe the run, e.g. early-stopping:patience=5 or mlflow; may be repeated (docs/callbacks.md)",
    )
    run.add_argument("--json", action="store_true", help="print the summary as JSON on stdout")
    add_import(run)
    add_data_root(run)


def _show(commands: "Commands") -> None:
    show = commands.add_parser("show", help="print a full specification as TOML, ready to edit and run")
    show.add_argument("what", nargs="*", metavar="RECIPE|FILE.toml KEY=VALUE")
    add_import(show)


def _list(commands: "Commands") -> None:
    lists = commands.add_parser("list", help="what there is to choose from")
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
        "--markdown", action="store_true", help="methods: the page docs/methods.md; models: the table of docs/models.md"
    )
    add_import(lists)
    add_data_root(lists)


def _data(commands: "Commands") -> None:
    data = commands.add_parser("data", help="list, fetch or check data sets, or write some of their images")
    actions = data.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=Parser)
    for action, text in (
        ("list", "data sets and whether they are here"),
        ("fetch", "download, verify and unpack a data set"),
        ("check", "verify a data set's files"),
        ("images", "write test images as PNG files, to look at or to predict on"),
    ):
        sub = actions.add_parser(action, help=text)
        if action != "list":
            sub.add_argument("name", metavar="NAME")
        if action == "images":
            sub.add_argument("--out", type=path, required=True, metavar="DIR", help="where to write NUMBER-CLASS.png")
            sub.add_argument("--count", type=positive, default=20, metavar="N", help="how many (default: 20)")
        add_import(sub)
        add_data_root(sub)


def _reproduce(commands: "Commands") -> None:
    reproduce = commands.add_parser(
        "reproduce",
        help="a table or figure of the paper, its values beside ours",
        epilog="example: asfedbridge reproduce main --scale cpu --seeds 0,1,2 --data cifar10=npz:mine.npz",
    )
    reproduce.add_argument("experiment", metavar="EXPERIMENT", help="one of: asfedbridge list experiments")
    reproduce.add_argument("--scale", choices=["paper", "cpu", "smoke"], required=True, help="experiment size")
    reproduce.add_argument("--seeds", type=seeds, default=[42], metavar="0,1,2", help="means and intervals over these")
    reproduce.add_argument(
        "--only", type=names, metavar="ROW,...", help="these methods (or variants) only; methods of your own, too"
    )
    reproduce.add_argument(
        "--columns", type=names, metavar="COLUMN,...", help="these data sets (or settings) only; your own, too"
    )
    reproduce.add_argument(
        "--add",
        type=names,
        default=[],
        metavar="NAME,...",
        help="methods of your own as further rows, data sets as further columns",
    )
    add_import(reproduce)
    reproduce.add_argument(
        "--data", type=data_source, action="append", default=[], metavar="NAME=SOURCE", help=SOURCE_HELP
    )
    reproduce.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change the specification of every run, e.g. rounds=5 or method.mu=0.1; may be repeated",
    )
    reproduce.add_argument("--out", type=path, metavar="DIR", help="where runs and tables go (default: runs/SCALE)")
    reproduce.add_argument("--jobs", type=positive, metavar="N", help="runs at once (default: by cores and threads)")
    reproduce.add_argument("--point", choices=POINTS, help=f"cka, gradients, mmd: {POINT_HELP}")
    reproduce.add_argument(
        "--client", type=client_id, metavar="ID", help="rates: show this SNN client, too (default: 9)"
    )
    reproduce.add_argument("--dry-run", action="store_true", help="list the runs and their states, and stop")
    reproduce.add_argument(
        "--measure", action="store_true", help="--dry-run: also estimate time and memory, by a short test of each run"
    )
    add_data_root(reproduce)


def _report(commands: "Commands") -> None:
    report = commands.add_parser("report", help="compare finished runs: a table, a page, figures")
    report.add_argument("folders", nargs="+", type=path, metavar="DIR", help="run folders, or folders of them")
    report.add_argument("--out", type=path, metavar="FILE.html", help="write a page that opens from disk, too")
    report.add_argument("--watch", action="store_true", help="renew the page of --out until every run has finished")
    report.add_argument("--figures", type=path, metavar="DIR", help="write figures as PNG, SVG and PDF, too")
    report.add_argument("--compare", action="store_true", help="print only the comparisons of methods over seeds")
    form = report.add_mutually_exclusive_group()
    form.add_argument("--markdown", action="store_true", help="print Markdown")
    form.add_argument(
        "--csv", action="store_true", help="print CSV, without rounding: runs, or comparisons (--compare)"
    )
    form.add_argument("--latex", action="store_true", help="print LaTeX tables (booktabs)")
    form.add_argument("--json", action="store_true", help="print a JSON list: summaries, or comparisons (--compare)")


def _predict(commands: "Commands") -> None:
    predict = commands.add_parser(
        "predict",
        help="classify images, or event recordings, with a trained client",
        epilog="example: asfedbridge predict runs/mine --client 5 photos/ one.png",
    )
    predict.add_argument("folder", type=path, metavar="RUN|STATE_DIR|FILE", help=TRAINED_HELP)
    predict.add_argument("images", nargs="+", metavar="IMAGE", help="files, or folders of them; resized as in training")
    predict.add_argument("--client", type=client_id, metavar="ID", help="needed where there are several")
    predict.add_argument("--fused", action="store_true", help="backbone and Bridge together, by the client's weight")
    predict.add_argument("--top", type=positive, default=1, metavar="K", help="show the K most probable classes")
    predict.add_argument("--json", action="store_true", help="print a JSON list, with all probabilities, on stdout")
    add_trained(predict)


def _evaluate(commands: "Commands") -> None:
    evaluate = commands.add_parser(
        "evaluate",
        help="trained clients on any data (default: each client on every client's test images)",
        epilog="example: asfedbridge evaluate runs/mine --data npz:mine.npz",
    )
    evaluate.add_argument("folder", type=path, metavar="RUN|STATE_DIR|FILE", help=TRAINED_HELP)
    evaluate.add_argument("--data", metavar="SOURCE", help="evaluate on the test images of this source")
    evaluate.add_argument("--client", type=client_id, metavar="ID", help="this client only")
    evaluate.add_argument("--fused", action="store_true", help="backbone and Bridge together, by the client's weight")
    evaluate.add_argument("--json", action="store_true", help="print everything as JSON on stdout")
    add_trained(evaluate)


def _export(commands: "Commands") -> None:
    export = commands.add_parser(
        "export",
        help="write a trained client for other programs: torch, ONNX or NIR, with a model card",
        epilog="example: asfedbridge export runs/mine --client 5 --format nir --out client5.nir --verify",
    )
    export.add_argument("folder", type=path, metavar="RUN|STATE_DIR|FILE", help=TRAINED_HELP)
    export.add_argument("--client", type=client_id, metavar="ID", help="needed where there are several")
    export.add_argument("--out", type=path, metavar="FILE", required=True, help=".pt2, .safetensors, .onnx or .nir")
    export.add_argument("--format", choices=["torch", "onnx", "nir"], help="default: by the suffix of --out")
    export.add_argument("--bridge", action="store_true", help="the client's Bridge in the place of its backbone")
    export.add_argument(
        "--verify", action="store_true", help="run the file in other runtimes on real images; exit code 1 on a mismatch"
    )
    export.add_argument("--data", metavar="SOURCE", help="images for --verify and the card (default: the run's data)")
    export.add_argument("--json", action="store_true", help="print card and differences as JSON on stdout")
    add_trained(export)


def _analyze(commands: "Commands") -> None:
    analyze = commands.add_parser("analyze", help="compare the clients of finished runs: CKA, MMD, gradients, rates")
    analyze.add_argument(
        "folders", nargs="+", type=path, metavar="RUN_DIR", help="run folders; several share one MMD kernel"
    )
    analyze.add_argument("--point", choices=POINTS, help=POINT_HELP)
    analyze.add_argument("--json", action="store_true", help="print the analyses as JSON on stdout")
    add_data_root(analyze)
    add_import(analyze)


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
    costs.add_argument("--run", type=path, metavar="RUN_DIR", help="count a finished run and its clients' spikes")
    costs.add_argument("--energy", action="store_true", help="add energy by the constants of docs/costs.md (45 nm)")
    costs.add_argument("--json", action="store_true", help="print everything as JSON on stdout")
    add_data_root(costs)
    add_import(costs)


def _flower(commands: "Commands") -> None:
    flower = commands.add_parser("flower", help="federations of real machines (docs/deployment.md)")
    does = flower.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=Parser)
    init = does.add_parser(
        "init",
        help="write a folder with the app that `flwr run` takes, and a script for certificates",
        epilog="example: asfedbridge flower init hospital cpu data=nodes fleet=2*resnet18@0.25:ann,2*resnet18@0.25:snn",
    )
    init.add_argument("folder", type=path, metavar="DIR", help="a new folder")
    init.add_argument("what", nargs="*", metavar="RECIPE|FILE.toml KEY=VALUE", help="what to run, then changes to it")
    add_import(init)
    tasks = does.add_parser(
        "tasks",
        help="take the place of flower-superexec: a turn is a fork of this process, which has loaded torch",
        epilog="example: asfedbridge flower tasks 127.0.0.1:9100 --insecure",
    )
    tasks.add_argument("address", metavar="HOST:PORT", help="of the SuperNode or SuperLink on this machine")
    secured = tasks.add_mutually_exclusive_group(required=True)
    secured.add_argument("--insecure", action="store_true", help="it has no certificate")
    secured.add_argument("--root-certificates", type=path, metavar="FILE", help="of the authority of its certificate")
    tasks.add_argument(
        "--superexec-auth-secret-file", type=path, metavar="FILE", help="the secret that it was started with, too"
    )
    check = does.add_parser(
        "check",
        help="on a node: is the SuperLink there, is its certificate valid, do the clocks agree?",
        epilog="example: asfedbridge flower check 192.0.2.1:8000 --root-certificates ca.crt",
    )
    check.add_argument("address", metavar="HOST:PORT", help="of the SuperLink")
    check.add_argument(
        "--root-certificates", type=path, metavar="FILE", required=True, help="of the authority of its certificate"
    )


def _bench(commands: "Commands") -> None:
    bench = commands.add_parser("bench", help="time this machine: ours beside other libraries (source checkout only)")
    bench.add_argument("name", nargs="?", metavar="NAME", help="one benchmark (default: all)")
    bench.add_argument("--quick", action="store_true", help="tiny sizes: does it run, not how fast")
    bench.add_argument("--repeats", type=positive, metavar="N", help="timed repeats")
    bench.add_argument("--threads", type=positive, metavar="N", help="threads per contender")
    bench.add_argument("--json", action="store_true", help="print the results as JSON on stdout")
