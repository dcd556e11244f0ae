"""Options of the commands that specify and run a federation: run, show, flower."""

from asfedbridge.cli.arguments import (
    Commands,
    Parser,
    add_data_root,
    add_import,
    path,
    positive,
    seconds,
    seeds,
    worker_count,
)


def add_run(commands: Commands) -> None:
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


def add_show(commands: Commands) -> None:
    show = commands.add_parser("show", help="print a full specification as TOML, ready to edit and run")
    show.add_argument(
        "what", nargs="*", metavar="RECIPE|FILE.toml KEY=VALUE", help="recipe or file, and changes to its settings"
    )
    add_import(show)


def add_flower(commands: Commands) -> None:
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
