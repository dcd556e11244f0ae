"""Opens clients from a run's last checkpoint, for runs that are not finished or have no client files."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from asfedbridge.core.errors import BadInput
from asfedbridge.core.task import Round
from asfedbridge.engines import checkpoint
from asfedbridge.engines.process import prepare_process
from asfedbridge.engines.turn import evaluate_at
from asfedbridge.runs.client_writer import make_writer
from asfedbridge.runs.folder import CHECKPOINT, SUMMARY, read_spec, read_summary
from asfedbridge.runs.rebuild import rebuild
from asfedbridge.runs.record_files import read_rounds
from asfedbridge.runs.records import summarise
from asfedbridge.runs.setting import prepare
from asfedbridge.runs.summary import Summary, describe_spec, parse_summary
from asfedbridge.runs.trained import TrainedClient


def open_checkpoint(folder: Path, data_root: Path) -> tuple[Summary, Callable[[int], TrainedClient]]:
    """The results so far, and a function that opens a client, in its state after a closing visit at that checkpoint.

    Reads the data of the run.
    """
    spec = read_spec(folder)
    if spec is None:
        raise BadInput(f"{folder}: is not a run folder")
    folders = checkpoint.list_folders(folder / CHECKPOINT)
    if not folders:
        raise BadInput(f"{folder}: the run has no checkpoint yet; wait for one, or finish it with resume=True")
    prepare_process(spec.threads)
    setting = prepare(spec, data_root)
    found = checkpoint.read(folders[-1], setting.identity(spec))
    rnd = Round(found.next_round, found.next_round)
    writer = make_writer(replace(spec, client_files="bridge"), setting.classes, folder)
    assert writer

    def open_client(client: int) -> TrainedClient:
        infos = [info for info in setting.clients if info.id == client]
        states = folder / CHECKPOINT / checkpoint.CLIENTS
        (living,) = rebuild(spec, setting, infos, found, states, "received", closing=True)
        metrics = evaluate_at("received", spec.method, living)
        return TrainedClient(writer.describe(living, rnd, metrics, living.modules), living, spec.method)

    ended = read_summary(folder)
    if ended is not None:
        return ended, open_client
    records = [record for record in read_rounds(folder) if record["round"] < found.next_round]
    about = {
        **describe_spec(spec),
        "stopped_early": {
            "rounds": found.next_round,
            "reason": "the run is not finished; clients of its last checkpoint",
        },
        "wall_seconds": found.seconds,
    }
    return parse_summary(summarise(spec.method, setting.clients, records, about), folder / SUMMARY), open_client
