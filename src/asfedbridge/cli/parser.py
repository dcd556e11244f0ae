"""The argument parser: commands, options and help texts."""

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
    Commands = argparse._SubParsersAction["Parser"]  # for annotations only: argparse has no public name for it

POINTS = ("trained", "received")
POINT_HELP = (
    "clients after local training, or after receiving the last aggregate (default: the method's evaluation point)"
)
TRAINED_HELP = "folder of a finished run, state folder of a node, or client file"
SOURCE_HELP = "use SOURCE for the paper's data set NAME, e.g. cifar10=npz:PATH; may be repeated"


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Report the error in one line, without the usage text."""
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
        help="train a federation (without arguments: the recipe quickstart)",
        epilog=(
            "examples: asfedbridge run cpu data=npz:mine.npz method=fedavg rounds=20 --out runs/mine; "
            "asfedbridge run cpu method=fml,standalone alpha=0.1,1 --seeds 0,1,2 --out runs/sweep"
        ),
    )
    run.add_argument(
        "what",
        nargs="*",
        metavar="RECIPE|FILE.toml KEY=VALUE",
        help="recipe or file to run, and changes to its settings; a list such as rounds=10,20 starts one run per value",
    )
    run.add_argument(
        "--seeds", type=seeds, default=[], metavar="0,1,2", help="one run per seed; the result shows means over seeds"
    )
    run.add_argument(
        "--out",
        type=path,
        metavar="DIR",
        help="run folder, or parent folder of several runs (default: a new folder in runs/)",
    )
    run.add_argument(
        "--jobs",
        type=positive,
        metavar="N",
        help="number of runs at the same time (default: from the number of cores and threads)",
    )
    run.add_argument(
        "--engine",
        choices=["local", "pool", "flower"],
        default="local",
        help="where clients run: in this process (local, the default), in worker processes (pool), or in Flower "
        "SuperNodes on this machine (flower)",
    )
    run.add_argument(
        "--workers",
        type=worker_count,
        metavar="N",
        help="--engine pool: number of worker processes (default: one per core)",
    )
    run.add_argument(
        "--min-clients",
        type=positive,
        metavar="N",
        help="--engine flower: usable uploads that a round needs (default: half)",
    )
    run.add_argument(
        "--round-timeout",
        type=seconds,
        metavar="S",
        help="--engine flower: time limit of a client's turn in seconds (default: 3600)",
    )
    run.add_argument(
        "--patience",
        type=seconds,
        metavar="S",
        help="--engine flower: seconds to wait for enough clients (default: 600)",
    )
    run.add_argument(
        "--allow-rollback",
        action="store_true",
        default=None,
        help="--engine flower: let nodes go back beyond the server's last checkpoint, if it was lost",
    )
    run.add_argument("--resume", action="store_true", help="continue from the last checkpoint in --out")
    run.add_argument(
        "--from-round", type=positive, metavar="N", help="with --resume: go back to the checkpoint after N rounds"
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
    show.add_argument(
        "what", nargs="*", metavar="RECIPE|FILE.toml KEY=VALUE", help="recipe or file, and changes to its settings"
    )
    add_import(show)


def _list(commands: "Commands") -> None:
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


def _data(commands: "Commands") -> None:
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


def _reproduce(commands: "Commands") -> None:
    reproduce = commands.add_parser(
        "reproduce",
        help="reproduce a table or figure of the paper, with the paper's values beside ours",
        epilog="example: asfedbridge reproduce main --scale cpu --seeds 0,1,2 --data cifar10=npz:mine.npz",
    )
    reproduce.add_argument(
        "experiment", metavar="EXPERIMENT", help="name of an experiment; `asfedbridge list experiments` shows all"
    )
    reproduce.add_argument("--scale", choices=["paper", "cpu", "smoke"], required=True, help="experiment size")
    reproduce.add_argument(
        "--seeds", type=seeds, default=[42], metavar="0,1,2", help="seeds for means and confidence intervals"
    )
    reproduce.add_argument(
        "--only", type=names, metavar="ROW,...", help="only these methods (or variants), including your own"
    )
    reproduce.add_argument(
        "--columns", type=names, metavar="COLUMN,...", help="only these data sets (or settings), including your own"
    )
    reproduce.add_argument(
        "--add",
        type=names,
        default=[],
        metavar="NAME,...",
        help="add your own methods as rows or data sets as columns",
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
    reproduce.add_argument("--out", type=path, metavar="DIR", help="folder for runs and tables (default: runs/SCALE)")
    reproduce.add_argument(
        "--jobs",
        type=positive,
        metavar="N",
        help="number of runs at the same time (default: from the number of cores and threads)",
    )
    reproduce.add_argument("--point", choices=POINTS, help=f"cka, gradients, mmd: {POINT_HELP}")
    reproduce.add_argument(
        "--client", type=client_id, metavar="ID", help="rates: also show this SNN client (default: 9)"
    )
    reproduce.add_argument("--dry-run", action="store_true", help="list the runs and their states without starting any")
    reproduce.add_argument(
        "--measure",
        action="store_true",
        help="with --dry-run: also estimate time and memory, from a short test of each run",
    )
    add_data_root(reproduce)


def _report(commands: "Commands") -> None:
    report = commands.add_parser("report", help="compare finished runs: tables, an HTML page, figures")
    report.add_argument(
        "folders", nargs="+", type=path, metavar="DIR", help="run folders, or folders that contain them"
    )
    report.add_argument("--out", type=path, metavar="FILE.html", help="also write a self-contained HTML page")
    report.add_argument("--watch", action="store_true", help="update the page of --out until all runs have finished")
    report.add_argument(
        "--figures", type=path, metavar="DIR", help="also write figures as PNG, SVG and PDF to this folder"
    )
    report.add_argument("--compare", action="store_true", help="print only the comparisons of methods over seeds")
    form = report.add_mutually_exclusive_group()
    form.add_argument("--markdown", action="store_true", help="print Markdown")
    form.add_argument("--csv", action="store_true", help="print unrounded CSV: runs, or comparisons (--compare)")
    form.add_argument("--latex", action="store_true", help="print LaTeX tables (booktabs)")
    form.add_argument("--json", action="store_true", help="print a JSON list: summaries, or comparisons (--compare)")


def _predict(commands: "Commands") -> None:
    predict = commands.add_parser(
        "predict",
        help="classify images, or event recordings, with a trained client",
        epilog="example: asfedbridge predict runs/mine --client 5 photos/ one.png",
    )
    predict.add_argument("folder", type=path, metavar="RUN|STATE_DIR|FILE", help=TRAINED_HELP)
    predict.add_argument(
        "images", nargs="+", metavar="IMAGE", help="files, or folders of files; resized as in training"
    )
    predict.add_argument(
        "--client", type=client_id, metavar="ID", help="client id; required if there are several clients"
    )
    predict.add_argument(
        "--fused", action="store_true", help="fuse the predictions of backbone and Bridge, with the client's own weight"
    )
    predict.add_argument("--top", type=positive, default=1, metavar="K", help="show the K most probable classes")
    predict.add_argument("--json", action="store_true", help="print a JSON list, with all probabilities, on stdout")
    add_trained(predict)


def _evaluate(commands: "Commands") -> None:
    evaluate = commands.add_parser(
        "evaluate",
        help="evaluate trained clients on any data (default: each client on every client's test images)",
        epilog="example: asfedbridge evaluate runs/mine --data npz:mine.npz",
    )
    evaluate.add_argument("folder", type=path, metavar="RUN|STATE_DIR|FILE", help=TRAINED_HELP)
    evaluate.add_argument("--data", metavar="SOURCE", help="evaluate on the test images of this source")
    evaluate.add_argument("--client", type=client_id, metavar="ID", help="only this client")
    evaluate.add_argument(
        "--fused", action="store_true", help="fuse the predictions of backbone and Bridge, with the client's own weight"
    )
    evaluate.add_argument("--json", action="store_true", help="print everything as JSON on stdout")
    add_trained(evaluate)


def _export(commands: "Commands") -> None:
    export = commands.add_parser(
        "export",
        help="export a trained client to torch, ONNX or NIR, with a model card",
        epilog="example: asfedbridge export runs/mine --client 5 --format nir --out client5.nir --verify",
    )
    export.add_argument("folder", type=path, metavar="RUN|STATE_DIR|FILE", help=TRAINED_HELP)
    export.add_argument(
        "--client", type=client_id, metavar="ID", help="client id; required if there are several clients"
    )
    export.add_argument("--out", type=path, metavar="FILE", required=True, help=".pt2, .safetensors, .onnx or .nir")
    export.add_argument(
        "--format", choices=["torch", "onnx", "nir"], help="file format (default: from the suffix of --out)"
    )
    export.add_argument("--bridge", action="store_true", help="export the client's Bridge instead of its backbone")
    export.add_argument(
        "--verify", action="store_true", help="run the file in other runtimes on real images; exit code 1 on a mismatch"
    )
    export.add_argument(
        "--data", metavar="SOURCE", help="images for --verify and the model card (default: the run's data)"
    )
    export.add_argument(
        "--json", action="store_true", help="print the model card and the differences as JSON on stdout"
    )
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
        help="count communication and computation by method and kind of client (default: the paper's setting)",
        epilog="example: asfedbridge costs fleet=5*resnet18@0.5:ann,5*resnet18@0.5:snn T=8 classes=200 image_size=64",
    )
    costs.add_argument(
        "what",
        nargs="*",
        metavar="RECIPE|FILE.toml KEY=VALUE",
        help="what to count. A recipe, a file or data= determines the image shape from the data; otherwise use "
        "classes= and channels=",
    )
    costs.add_argument("--run", type=path, metavar="RUN_DIR", help="use a finished run, and count its clients' spikes")
    costs.add_argument(
        "--energy", action="store_true", help="add energy estimates, with the constants in docs/costs.md (45 nm)"
    )
    costs.add_argument("--json", action="store_true", help="print everything as JSON on stdout")
    add_data_root(costs)
    add_import(costs)


def _flower(commands: "Commands") -> None:
    flower = commands.add_parser("flower", help="deploy a federation on real machines (docs/deployment.md)")
    does = flower.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=Parser)
    init = does.add_parser(
        "init",
        help="write an app folder for `flwr run`, and a script that creates certificates",
        epilog="example: asfedbridge flower init hospital cpu data=nodes fleet=2*resnet18@0.25:ann,2*resnet18@0.25:snn",
    )
    init.add_argument("folder", type=path, metavar="DIR", help="folder to create")
    init.add_argument(
        "what",
        nargs="*",
        metavar="RECIPE|FILE.toml KEY=VALUE",
        help="recipe or file to run, and changes to its settings",
    )
    add_import(init)
    tasks = does.add_parser(
        "tasks",
        help="replace flower-superexec: run each turn in a fork of this process, with torch already loaded",
        epilog="example: asfedbridge flower tasks 127.0.0.1:9100 --insecure",
    )
    tasks.add_argument("address", metavar="HOST:PORT", help="address of the SuperNode or SuperLink on this machine")
    secured = tasks.add_mutually_exclusive_group(required=True)
    secured.add_argument("--insecure", action="store_true", help="connect without TLS")
    secured.add_argument("--root-certificates", type=path, metavar="FILE", help="CA certificate for TLS")
    tasks.add_argument(
        "--superexec-auth-secret-file",
        type=path,
        metavar="FILE",
        help="secret file that the SuperNode or SuperLink was started with",
    )
    check = does.add_parser(
        "check",
        help="on a node: check the connection to the SuperLink, its certificate and this machine's clock",
        epilog="example: asfedbridge flower check 192.0.2.1:8000 --root-certificates ca.crt",
    )
    check.add_argument("address", metavar="HOST:PORT", help="address of the SuperLink")
    check.add_argument("--root-certificates", type=path, metavar="FILE", required=True, help="CA certificate for TLS")


def _bench(commands: "Commands") -> None:
    bench = commands.add_parser(
        "bench", help="compare the speed of this library and others on this machine (source checkout only)"
    )
    bench.add_argument("name", nargs="?", metavar="NAME", help="name of a benchmark (default: all)")
    bench.add_argument("--quick", action="store_true", help="tiny sizes, only to check that it runs")
    bench.add_argument("--repeats", type=positive, metavar="N", help="number of timed repeats")
    bench.add_argument("--threads", type=positive, metavar="N", help="threads per contender")
    bench.add_argument("--json", action="store_true", help="print the results as JSON on stdout")
