"""The user's own files: `npz:PATH` and `folder:PATH`."""

from pathlib import Path

from asfedbridge.core.errors import BadInput
from asfedbridge.data.dataset import Dataset
from asfedbridge.data.image_folder import load_folder
from asfedbridge.data.npz import load_npz
from asfedbridge.data.npz_events import holds_events, load_npz_events
from asfedbridge.data.sources.registry import Request, Source, add_source


def expand(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise BadInput(f"{path}: no such user: write the full path") from None


def load_archive(request: Request) -> Dataset:
    file = expand(request.path)
    if holds_events(file):
        return load_npz_events(request.name, file, request.stored_size, request.framing, request.skip_damaged)
    return load_npz(request.name, file, request.stored_size)


def load_images(request: Request) -> Dataset:
    return load_folder(request.name, expand(request.path), request.stored_size_of_any)


add_source(
    Source(
        name="npz:PATH",
        about="your own uint8 arrays x_train, y_train, x_test, y_test [, classes], or events (docs/events.md)",
        load=load_archive,
        origin="read from PATH",
    )
)
add_source(
    Source(
        name="folder:PATH",
        about="your own images, train/CLASS/* and test/CLASS/*",
        load=load_images,
        origin="read from PATH",
    )
)
