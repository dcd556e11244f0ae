"""Options of the commands about experiments and finished runs: reproduce, report, analyze, costs."""

from asfedbridge.cli.arguments import (
    Commands,
    add_data_root,
    add_import,
    client_id,
    data_source,
    names,
    path,
    positive,
    seeds,
)

POINTS = ("trained", "received")
POINT_HELP = (
    "clients after local training, or after receiving the last aggregate (default: the method's evaluation point)"
)
POINT_HELP = (
    "clients after local training, or after receiving the last aggregate (default: the method's evaluation point)"
)
SOURCE_HELP = "use SOURCE for the paper's data set NAME, e.g. cifar10=npz:PATH; may be repeated"


def add_reproduce(commands: Commands) -> None:
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


def add_report(commands: Commands) -> None:
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


def add_analyze(commands: Commands) -> None:
    analyze = commands.add_parser("analyze", help="compare the clients of finished runs: CKA, MMD, gradients, rates")
    analyze.add_argument(
        "folders", nargs="+", type=path, metavar="RUN_DIR", help="run folders; several share one MMD kernel"
    )
    analyze.add_argument("--point", choices=POINTS, help=POINT_HELP)
    analyze.add_argument("--json", action="store_true", help="print the analyses as JSON on stdout")
    add_data_root(analyze)
    add_import(analyze)


def add_costs(commands: Commands) -> None:
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
