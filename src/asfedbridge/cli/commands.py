"""The commands; each returns its exit code. `run`, `reproduce`, `report` and some others have their own modules."""

import argparse
import json
import sys

from asfedbridge.cli.arguments import resolve as resolve
from asfedbridge.cli.report import command_analyze, command_costs, command_report
from asfedbridge.cli.reproduce import command_reproduce
from asfedbridge.cli.run import command_run
from asfedbridge.cli.terminal import DONE, FAILED, end_like_ctrl_c, tell
from asfedbridge.cli.trained import command_evaluate, command_export, command_predict
from asfedbridge.core import BadInput, printable

__all__ = [
    "command_analyze",
    "command_bench",
    "command_costs",
    "command_data",
    "command_evaluate",
    "command_export",
    "command_flower",
    "command_list",
    "command_predict",
    "command_report",
    "command_reproduce",
    "command_run",
    "command_show",
    "resolve",
]


def command_show(args: argparse.Namespace) -> int:
    from asfedbridge.runs import write_toml

    print(write_toml(resolve(args.what), comments=True), end="")
    return DONE


def command_list(args: argparse.Namespace) -> int:
    from asfedbridge.report.listings import list_topic, methods_page, models_table

    pages = {"methods": methods_page, "models": models_table}
    if args.markdown and args.topic not in pages:
        raise BadInput(
            f"list {args.topic} --markdown: only methods and models have a Markdown page; choose one of them"
        )
    print(pages[args.topic]() if args.markdown else list_topic(args.topic, args.data_root))
    if args.topic == "settings":
        from asfedbridge.runs import Spec, list_keys, undocumented

        if missing := undocumented(list_keys(Spec)):
            tell(f"not documented (add a comment to the field in the source): {', '.join(missing)}")
            return FAILED
    return DONE


def command_data(args: argparse.Namespace) -> int:
    from asfedbridge.data import check, data_root, fetch, load, write_images
    from asfedbridge.report.listings import download_bar, list_topic

    if args.action == "list":
        print(list_topic("data", args.data_root))
        return DONE
    root = data_root(args.data_root)
    if args.action == "fetch":
        fetch(args.name, root, download_bar(sys.stderr))
    if args.action == "images":
        written = write_images(load(args.name, root), args.out, args.count)
        print(f"written: {len(written)} images in {printable(str(args.out))}")
        return DONE
    print("\n".join(map(printable, check(args.name, root))))
    return DONE


def command_flower(args: argparse.Namespace) -> int:
    from asfedbridge.deploy.app_folder import write_deployment

    if args.action == "tasks":
        import asfedbridge.deploy.preload  # noqa: F401  before the first fork
        from asfedbridge.deploy.programs import serve_tasks

        serve_tasks(args.address, args.root_certificates, args.superexec_auth_secret_file)
        return DONE
    if args.action == "check":
        from asfedbridge.deploy.clock import check_superlink

        tell(check_superlink(args.address, args.root_certificates))
        return DONE
    write_deployment(args.folder, resolve(args.what), args.files)
    tell(f"written: {args.folder}; docs/deployment.md describes the next steps")
    return DONE


def command_bench(args: argparse.Namespace) -> int:
    from asfedbridge.report.bench import choose_scripts, run_script

    end_like_ctrl_c()
    words = [f"--{flag}" for flag in ("quick", "json") if getattr(args, flag)]
    words += [f"--{key}={value}" for key in ("repeats", "threads") if (value := getattr(args, key)) is not None]
    finished = {name: run_script(path, words, args.json) for name, path in choose_scripts(args.name).items()}
    if args.json:
        results = {name: result for name, (_, result) in finished.items()}
        print(json.dumps(results[args.name] if args.name else results))
    return max(code for code, _ in finished.values())
