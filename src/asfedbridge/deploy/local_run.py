"""`asfedbridge run --engine flower`: the server and one node per client as processes on this machine."""

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from asfedbridge.core import FILES, BadInput, CallbackFailed, Diverged, TooFewClients, WorkerLost
from asfedbridge.deploy.app_folder import CONFIG, OUTCOME, PROCESS, PROGRESS, STATES, check_network, write_app
from asfedbridge.deploy.local_cluster import Loopback
from asfedbridge.deploy.scratch import Scratch
from asfedbridge.deploy.sockets import PATIENCE
from asfedbridge.engines import prepare_process
from asfedbridge.runs import RunFolder, Spec, Summary, pick_device, prepare, read_summary

PRELOAD = ("sklearn.datasets", "asfedbridge.deploy.apps", "asfedbridge.report.progress")
ERRORS = {kind.__name__: kind for kind in (BadInput, CallbackFailed, Diverged, TooFewClients)}
SETTLE = 30.0  # seconds per node, added up, for all nodes to connect
NODE_OPTIONS = ("allow-rollback",)  # for the configuration of each node
Tell = Callable[[str], None]


def execute(
    spec: Spec,
    out: Path,
    data_root: Path,
    tell: Tell,
    resume: bool = False,
    options: Mapping[str, Any] | None = None,
    from_round: int | None = None,
) -> Summary:
    """Run to the end in ``out``; ``options`` are entries of ``app_folder.CONFIG`` or NODE_OPTIONS.

    ``from_round`` first takes the server and its nodes, which belong to the same user, back to that checkpoint.
    """
    out, data_root = out.absolute(), data_root.absolute()
    check_network(spec)
    pick_device(spec.device, spec.precision)
    prepare_process(1)
    setting = prepare(spec, data_root)
    folder = RunFolder(out, spec, resume)
    finished = read_summary(out)
    if finished is not None and from_round is None:
        return finished
    folder.hand_over()  # passed to the server's process
    options = dict(options or {})
    common: dict[str, Any] = {"state-dir": str(out / STATES), "data-root": str(data_root)}
    common |= {name: options.pop(name) for name in NODE_OPTIONS if name in options}
    if from_round is not None:
        common["allow-rollback"], options["from-round"] = True, from_round
    nodes: dict[int, dict[str, Any]] = {c.id: {"client-id": c.id, **common} for c in setting.clients}
    with Scratch() as place:
        reports = place / "reports"
        reports.mkdir()
        fixed = {"out": str(out), "resume": True, "data-root": str(data_root), "report-to": str(reports)}
        options.setdefault("gathering", max(CONFIG["gathering"], SETTLE * len(nodes)))  # we notice when one ends
        write_app(place / "app", spec, {"imports": ":".join(FILES), **options, **fixed})
        tell(f"starting a SuperLink and {len(nodes)} SuperNodes ...")
        fleet = Loopback(place / "flower", nodes, PRELOAD)
        try:
            fleet.submit(place / "app")
            follow(fleet, reports, tell)
        finally:
            fleet.close()
    summary = read_summary(out)
    assert summary is not None
    return summary


def follow(fleet: Loopback, reports: Path, tell: Tell) -> None:
    """Pass on the server's messages until it ends."""
    shown, begin = 0, time.monotonic()
    while True:
        gone = not _lives(reports, begin)
        ended = (reports / OUTCOME).exists()
        text = (reports / PROGRESS).read_text(encoding="utf-8") if (reports / PROGRESS).exists() else ""
        whole = text[: text.rfind("\n") + 1]
        for line in whole[shown:].splitlines():
            tell(line)
        shown = len(whole)
        if ended:
            break
        if gone:
            raise WorkerLost("the server's process was killed or could not start; continue with resume=True")
        fleet.check()
        time.sleep(0.2)
    outcome = json.loads((reports / OUTCOME).read_bytes())
    if outcome:
        raise ERRORS.get(outcome["kind"], WorkerLost)(
            outcome["text"] if outcome["kind"] in ERRORS else f"the server failed: {outcome['kind']}: {outcome['text']}"
        )


def _lives(reports: Path, begin: float) -> bool:
    """Whether the server's process, which Flower starts, is alive or may still be starting."""
    file = reports / PROCESS
    if not file.exists():
        return time.monotonic() - begin < PATIENCE
    try:
        os.kill(int(file.read_bytes()), 0)
    except ProcessLookupError:
        return False
    return True
