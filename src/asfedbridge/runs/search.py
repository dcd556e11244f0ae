"""Finds client files: in a run folder, in a node's state folder, or given by path."""

from pathlib import Path

from asfedbridge.core.errors import BadInput
from asfedbridge.core.reading import is_there
from asfedbridge.runs.client_builder import Models
from asfedbridge.runs.client_file import NAME, client_name, list_clients
from asfedbridge.runs.folder import CLIENTS, NODES, SPEC, SUMMARY
from asfedbridge.runs.trained import TrainedClient, open_client

MAX_NAMES = 8
PLACES = (CLIENTS, f"{NODES}/*/client-*", "client-*", "*/client-*")  # subfolders to search


def load_client(
    path: str | Path, client: int | None = None, *, models: Models | None = None, trust: bool = False
) -> TrainedClient:
    """Load one trained client from its file, a run folder or, on a node of a deployment, the node's state folder.

    ``client`` is required if there are several. ``models`` and ``trust`` are as for ``load``.

    >>> afb.load_client("states", client=3).predict("photos/").names
    ['cat', 'ship']
    """
    return open_client(find_client(Path(path), client), models, trust)


def find_client(path: Path, client: int | None = None) -> Path:
    """The path of a client's card; BadInput lists the available clients."""
    if not is_there(path):
        raise BadInput(f"{path}: no such file or folder; give a run folder, a node's state folder or a client file")
    if not path.is_dir():
        if not NAME.fullmatch(path.name):
            raise BadInput(f"{path}: is not a client file; give a run folder, or a file such as {client_name(0)}.json")
        return path
    _check_ended(path)
    cards = find_clients(path)
    chosen = [card for card in cards if client is None or card.stem == client_name(client)]
    if len(chosen) == 1:
        return chosen[0]
    if not cards:
        raise BadInput(f"{path}: {_why_none(path)}")
    if not chosen:
        raise BadInput(f"client={client}: {path} has no such client; it has {_names(cards)}")
    if client is None and len({card.stem for card in chosen}) > 1:
        raise BadInput(f"{path}: choose a client with client=ID; it has {_names(cards)}")
    folders = ", ".join(str(card.parent) for card in chosen[:MAX_NAMES])
    raise BadInput(f"{path}: contains this client of {len(chosen)} runs; give one of {folders}")


def find_clients(folder: Path) -> list[Path]:
    """The cards in a run folder or a node's state folder; the first place that has any is used."""
    for inner in ([folder], *(sorted(folder.glob(place)) for place in PLACES)):
        found = [card for one in inner for card in list_clients(one)]
        if found:
            return sorted(found, key=lambda card: (int(card.stem.removeprefix("client-")), card))
    return []


def _check_ended(folder: Path) -> None:
    if is_there(folder / SPEC) and not is_there(folder / SUMMARY):
        raise BadInput(
            f"{folder}: the run is not finished; finish it with resume=True, or use the clients of its last checkpoint "
            f"with checkpoint=True"
        )


def _why_none(folder: Path) -> str:
    if not is_there(folder / SPEC):
        return "contains no client file; give a run folder, a node's state folder or a client file"
    if is_there(folder / "federation.json"):
        return "its clients are on the nodes of a deployment; on a node, give its state folder"
    return (
        "the run has no client files (client_files=none); use the clients of its last checkpoint with checkpoint=True"
    )


def _names(cards: list[Path]) -> str:
    ids = list(dict.fromkeys(int(card.stem.removeprefix("client-")) for card in cards))
    if ids == list(range(len(ids))) and len(ids) > 1:
        return f"0 to {ids[-1]}"
    return ", ".join(map(str, ids[:MAX_NAMES])) + (", ..." if len(ids) > MAX_NAMES else "")
