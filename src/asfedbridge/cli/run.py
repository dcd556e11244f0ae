"""`asfedbridge run`: one run, or one for each combination of listed values and seeds."""

import argparse
import json
import shlex
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asfedbridge.cli.arguments import split_words
from asfedbridge.cli.report import summary_tables
from asfedbridge.cli.terminal import DONE, FAILED, INTERRUPTED, end_like_ctrl_c, print_if_possible, tell
from asfedbridge.core import BadInput, printable

if TYPE_CHECKING:
    from asfedbridge.runs import Spec, Summary

FLOWER_OPTIONS = ("min-clients", "round-timeout", "patience", "allow-rollback")  # options that need --engine flower


def command_run(args: argparse.Namespace) -> int:
    from asfedbridge.runs import check_from_round, default_folder, expand

    _check_options(args)
    if args.from_round is not None:
        check_from_round(args.from_round, args.resume)
    if args.resume and args.out is None:
        raise BadInput("--resume needs --out DIR, the folder of the run to continue")
    runs = {"": _read_spec(args.out)} if args.resume and not args.what else expand(*split_words(args.what), args.seeds)
    if list(runs) != [""]:
        return _run_all(args, runs)
    if args.jobs:
        raise BadInput(f"--jobs {args.jobs}: there is one run; list seeds or values, for example --seeds 0,1,2")
    spec = runs[""]
    out = args.out or default_folder(spec)
    end_like_ctrl_c()
    try:
        summary = _execute(args, spec, out, args.resume)
    except KeyboardInterrupt:
        print_if_possible(f"interrupted; continue with: {shlex.join(_resume_words(args, out))}")
        return INTERRUPTED
    stream = sys.stderr if args.json else sys.stdout
    print(f"\n{summary_tables(summary, out)}\n\nrun folder: {printable(str(out))}", file=stream)
    if args.json:
        print(json.dumps(summary.to_json()))
    return DONE


def _resume_words(args: argparse.Namespace, out: Path) -> list[str]:
    """The command that continues an interrupted run, with the options that are not in its folder."""
    words = ["asfedbridge", "run", "--resume", "--out", str(out)]
    words += ["--engine", args.engine] if args.engine != "local" else []
    for name, value in _flower_options(args).items():
        words += [f"--{name}"] if value is True else [f"--{name}", f"{value:g}"]
    words += [word for text in args.callbacks for word in ("--callback", text)]
    words += [word for file in args.files for word in ("--import", file)]
    return words + (["--data-root", str(args.data_root)] if args.data_root else [])


def _run_all(args: argparse.Namespace, runs: Mapping[str, "Spec"]) -> int:
    """Execute each run in its own folder in ``--out``. Finished runs are reused; interrupted ones continue."""
    import torch

    from asfedbridge.cli.report import print_runs
    from asfedbridge.data import data_root
    from asfedbridge.paper.reproduce import Job, choose_width, play
    from asfedbridge.runs import make_callback, read_summary

    if args.from_round is not None:
        raise BadInput(f"--from-round {args.from_round}: there are {len(runs)} runs; resume one of them by itself")
    for text in args.callbacks:
        make_callback(text)  # reports an invalid one before training starts
    out = args.out or Path("runs") / f"sweep-{time.strftime('%Y%m%d-%H%M%S')}"
    jobs = [Job(spec, out / name) for name, spec in runs.items()]
    at_once = args.jobs or choose_width(jobs, torch.cuda.is_available()) if args.engine == "local" else 1
    tell(f"{len(jobs)} runs in {out}, {min(at_once, len(jobs))} at once")
    end_like_ctrl_c()
    try:
        if args.engine == "local":
            failures = play(jobs, data_root(args.data_root), at_once, tell, args.callbacks)
        else:
            failures = {}
            for number, job in enumerate(jobs, start=1):
                tell(f"[{number}/{len(jobs)}] {job.folder.name}")
                _execute(args, job.spec, job.folder, resume=True)
    except KeyboardInterrupt:
        again = shlex.join(["asfedbridge", *args.words, *([] if args.out else ["--out", str(out)])])
        print_if_possible(f"interrupted; continue with: {again}")
        return INTERRUPTED
    finished = {job.folder: summary for job in jobs if (summary := read_summary(job.folder))}
    if finished:
        stream = sys.stderr if args.json else sys.stdout
        print_runs(finished, stream)
        page = ["asfedbridge", "report", str(out), "--out", str(out / "report.html")]
        print(
            f"\nrun folders: {printable(str(out))}; for a page with curves: {printable(shlex.join(page))}", file=stream
        )
    if args.json:
        print(json.dumps([summary.to_json() for summary in finished.values()]))
    return FAILED if failures else DONE


def _check_options(args: argparse.Namespace) -> None:
    if args.workers and args.engine != "pool":
        raise BadInput(f"--workers {args.workers}: the {args.engine} engine has no workers; add --engine pool")
    if args.jobs and args.engine != "local":
        raise BadInput(f"--jobs {args.jobs}: --engine {args.engine} executes one run at a time; leave it out")
    for name, value in _flower_options(args).items():
        if args.engine != "flower":
            shown = "" if value is True else f" {value:g}"
            raise BadInput(f"--{name}{shown}: the {args.engine} engine has no such option; add --engine flower")


def _flower_options(args: argparse.Namespace) -> dict[str, Any]:
    found = {name: getattr(args, name.replace("-", "_")) for name in FLOWER_OPTIONS}
    return {name: value for name, value in found.items() if value is not None}


def _read_spec(out: Path) -> "Spec":
    from asfedbridge.runs import SPEC, read_spec

    spec = read_spec(out)
    if spec is None and any(out.glob(f"*/{SPEC}")):
        raise BadInput(
            f"--out {out}: contains several runs; repeat the command that started them, or resume one of them"
        )
    if spec is None:
        raise BadInput(f"--out {out}: there is no run to resume; name a recipe to start one")
    return spec


def _execute(args: argparse.Namespace, spec: "Spec", out: Path, resume: bool) -> "Summary":
    from asfedbridge.data import data_root
    from asfedbridge.report.progress import Progress
    from asfedbridge.runs import execute, make_callback

    root, callbacks = data_root(args.data_root), [make_callback(text) for text in args.callbacks]
    if args.engine == "flower":
        from asfedbridge.deploy import local_run

        chosen = {**_flower_options(args), "callbacks": ";".join(args.callbacks)}
        return local_run.execute(spec, out, root, tell, resume, chosen, args.from_round)
    options = {"resume": resume, "engine": args.engine, "workers": args.workers or 0, "from_round": args.from_round}
    return execute(spec, out, root, [Progress(), *callbacks], **options)
