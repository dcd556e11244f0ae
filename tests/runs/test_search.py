"""Where clients are found, and what is said where they are not."""

import dataclasses
from pathlib import Path

import pytest
from tests.runs.test_client_file import CARD, tensors_of

import asfedbridge as afb
from asfedbridge.core.errors import BadInput
from asfedbridge.runs.client_file import write_client
from asfedbridge.runs.search import find_client, find_clients


@pytest.fixture(scope="module")
def tensors() -> dict[str, object]:
    return dict(tensors_of(CARD))


def put(folder: Path, tensors: object, *ids: int) -> None:
    for client in ids:
        write_client(folder, dataclasses.replace(CARD, id=client), tensors)  # type: ignore[arg-type]


def test_a_nodes_state_folder_at_any_level(tmp_path: Path, tensors: object) -> None:
    inner = tmp_path / "states" / "0123456789abcdef" / "client-0005"
    put(inner, tensors, 5)
    card = inner / "client-0005.json"
    for place in (tmp_path / "states", inner.parent, inner, card, card.with_suffix(".safetensors")):
        assert afb.load_client(place).card == CARD
        assert afb.load_client(place, 5).card == CARD
    put(tmp_path / "states" / "fedcba9876543210" / "client-0005", tensors, 5)
    with pytest.raises(BadInput, match="contains this client of 2 runs; give one of"):
        afb.load_client(tmp_path / "states")


def test_one_of_several_must_be_named(tmp_path: Path, tensors: object) -> None:
    put(tmp_path / "clients", tensors, 0, 1, 2)
    assert [path.stem for path in find_clients(tmp_path)] == ["client-0000", "client-0001", "client-0002"]
    assert afb.load_client(tmp_path, 1).card.id == 1
    with pytest.raises(BadInput, match="choose a client with client=ID; it has 0 to 2"):
        afb.load_client(tmp_path)
    with pytest.raises(BadInput, match=r"client=7: .* has no such client; it has 0 to 2"):
        afb.load_client(tmp_path, 7)


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ([], "contains no client file; give a run folder"),
        (["spec.toml"], r"the run is not finished; finish it with resume=True, or .* checkpoint=True"),
        (["spec.toml", "summary.json"], "has no client files"),
        (["spec.toml", "summary.json", "federation.json"], "its clients are on the nodes of a deployment"),
    ],
)
def test_a_folder_without_clients_says_why(tmp_path: Path, files: list[str], says: str) -> None:
    for name in files:
        (tmp_path / name).write_text("")
    with pytest.raises(BadInput, match=says):
        find_client(tmp_path, 0)


def test_other_paths_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no such file or folder"):
        find_client(tmp_path / "nowhere")
    (tmp_path / "model.bin").write_bytes(b"")
    with pytest.raises(BadInput, match="is not a client file"):
        find_client(tmp_path / "model.bin")
