"""`asfedbridge run --engine flower`: the server and a node for each client as processes of this machine."""

import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from asfedbridge.core import FILES, BadInput, CallbackFailed, Diverged, TooFewClients, WorkerLost
from asfedbridge.deploy.app_folder import OUTCOME, PROCESS, PROGRESS, STATES, check_network, write_app
from asfedbridge.deploy.local_cluster import PATIENCE, Loopback
from asfedbridge.engines import prepare_process
from asfedbridge.runs import RunFolder, Spec, Summary, pick_device, prepare, read_summary

PRELOAD = ("sklearn.datasets", "asfedbridge.deploy.apps", "asfedbridge.report.progress")
ERRORS = {kind.__name__: kind for kind in (BadInput, CallbackFailed, Diverged, TooFewClients)}
Tell = Callable[[str], None]


def execute(
    spec: Spec, out: Path, data_root: Path, tell: Tell, resume: bool = False, options: Mapping[str, Any] | None = None
) -> Summary:
    """Play the run in ``out`` to its end; ``options`` are entries of ``app_folder.CONFIG``."""
    out, data_root = out.absolute(), data_root.absolute()
    check_network(spec)
    pick_device(spec.device, spec.precision)
    prepare_process(1)
    setting = prepare(spec, data_root)
    folder = RunFolder(out, spec, resume)
    finished = read_summary(out)
    if finished is not None:
        return finished
    folder.hand_over()  # to the server's process
    nodes = {
        c.id: {"client-id": c.id, "state-dir": str(out / STATES), "data-root": str(data_root)} for c in setting.clients
    }
    with tempfile.TemporaryDirectory(prefix="asfedbridge-flower-", ignore_cleanup_errors=True) as place:
        reports = Path(place) / "reports"
        reports.mkdir()
        fixed = {"out": str(out), "resume": True, "data-root": str(data_root), "report-to": str(reports)}
        write_app(Path(place) / "app", spec, {"imports": ":".join(FILES), **(options or {}), **fixed})
        tell(f"starting a SuperLink and {len(nodes)} SuperNodes ...")
        fleet = Loopback(Path(place) / "flower", nodes, PRELOAD)
        try:
            fleet.submit(Path(place) / "app")
            follow(fleet, reports, tell)
        finally:
            fleet.close()
    summary = read_summary(out)
    assert summary is not None
    return summary


def follow(fleet: Loopback, reports: Path, tell: Tell) -> None:
    """Pass on what the server says, until it has ended."""
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
            raise WorkerLost("the server's process was killed or could not begin; go on with resume=True")
        fleet.check()
        time.sleep(0.2)
    outcome = json.loads((reports / OUTCOME).read_bytes())
    if outcome:
        raise ERRORS.get(outcome["kind"], WorkerLost)(
            outcome["text"] if outcome["kind"] in ERRORS else f"the server failed: {outcome['kind']}: {outcome['text']}"
        )


def _lives(reports: Path, begin: float) -> bool:
    """The server's process, which none of those that we started is: it is there, or is given time to come."""
    file = reports / PROCESS
    if not file.exists():
        return time.monotonic() - begin < PATIENCE
    try:
        os.kill(int(file.read_bytes()), 0)
    except ProcessLookupError:
        return False
    return True
