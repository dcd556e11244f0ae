"""The registry of data sets. A data set is a ``Source`` in a module of this package, or comes from ``register_data``.

Runs, recipes, ``asfedbridge data`` and ``asfedbridge list data`` use only this registry.
"""

import difflib
import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from asfedbridge.core.errors import BadInput, describe_error
from asfedbridge.data.adapters import as_dataset
from asfedbridge.data.archive import Progress
from asfedbridge.data.dataset import MAX_SIZE, Dataset, check_image_size
from asfedbridge.data.event_frames import Framing
from asfedbridge.data.loader import AUGMENTATIONS
from asfedbridge.data.random_crop import RESIZED, enlarged

PATH = ":PATH"  # suffix of the names of sources that read the user's files
DEFAULT_FRAMING = Framing()
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Request:
    """The arguments of ``Source.load``."""

    name: str  # as the user wrote it
    root: Path  # the folder of downloaded sets
    image_size: int = 0  # 0: the source's default
    augment: str = "auto"  # "auto": the source's default
    skip_damaged: bool = False  # continue without damaged or missing files
    framing: Framing = DEFAULT_FRAMING

    @property
    def path(self) -> str:
        """The path after npz: or folder:."""
        return self.name.partition(":")[2]

    @property
    def stored_size(self) -> int:
        """The size to which images are resized on loading; 0 keeps it, as "resized-crop+flip" scales each batch."""
        return 0 if self.augment == RESIZED else self.image_size

    @property
    def stored_size_of_any(self) -> int:
        """The same for images of unequal sizes. With "resized-crop+flip", the size that evaluation needs."""
        if self.augment == RESIZED and self.image_size:
            return min(enlarged(self.image_size), MAX_SIZE)
        return self.stored_size


@dataclass(frozen=True)
class Source:
    """A data set: description, origin, functions that load, fetch and check it, and its settings in the recipes."""

    name: str
    about: str  # one line for ``asfedbridge list data``
    load: Callable[[Request], Dataset]
    origin: str = ""  # where it comes from, if it cannot be fetched
    is_here: Callable[[Path], bool] | None = None  # True if its files are in the data root
    fetch: Callable[[Path, Progress], Path] | None = None  # downloads into the data root; returns the set's folder
    instructions: Callable[[Path], str] | None = None  # for a manual download, if it cannot be fetched
    check: Callable[[Path], list[str]] | None = None  # checks in addition to those of ``load``; returns report lines
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # recipe -> fields of the specification


SOURCES: dict[str, Source] = {}


def add_source(source: Source) -> None:
    SOURCES[source.name] = source


def register_data(
    name: str, about: str, augment: str = "crop+flip", settings: Mapping[str, Mapping[str, Any]] | None = None
) -> Callable[[F], F]:
    """Decorator for a function that returns a data set. A run uses it as ``data=NAME``.

    The function takes no arguments, or the folder of downloaded data sets as ``root``. It returns a ``Dataset``; a
    mapping of arrays as in an npz archive (x_train, y_train, x_test, y_test; optional classes, client_train,
    client_test); or a training and a test set, as a pair or under the keys "train" and "test", each in a form that
    ``as_arrays`` accepts. ``augment`` is the augmentation of runs with ``augment=auto``. ``settings`` are fields of
    the specification by recipe, e.g. {"cpu": {"train_per_class": 50}}; a run applies them unless the user sets them.
    """
    if not name or set(name) & set(":,= ") or name == "nodes":
        raise ValueError(f"invalid data set name '{name}': use none of : , = or space, and not the word nodes")
    if augment not in AUGMENTATIONS:
        raise ValueError(f"data set '{name}': unknown augment '{augment}': choose from {', '.join(AUGMENTATIONS)}")

    def enter(function: F) -> F:
        known = SOURCES.get(name)
        # A worker process imports the main script under another name and registers the same function again.
        load = _Registered(function, augment)
        if known and not (isinstance(known.load, _Registered) and known.load.function == load.function):
            raise ValueError(f"data set '{name}' is already registered; choose another name")
        code = getattr(function, "__code__", None)
        origin = f"registered by {Path(code.co_filename).name if code else function.__module__}"
        add_source(Source(name, about, load, origin, settings=settings or {}))
        return function

    return enter


class _Registered:
    def __init__(self, read: Callable[..., Any], augment: str) -> None:
        self.read, self.augment = read, augment
        self.function = getattr(read, "__qualname__", type(read).__qualname__)
        self.takes_root = "root" in inspect.signature(read).parameters

    def __call__(self, request: Request) -> Dataset:
        try:
            found = self.read(root=request.root) if self.takes_root else self.read()
        except BadInput:
            raise
        except Exception as error:
            code = getattr(self.read, "__code__", None)
            what = describe_error(error, code.co_filename if code else "")
            raise BadInput(f"data {request.name!r}: its function fails: {what}") from error
        sizes = request.stored_size, request.stored_size_of_any
        return as_dataset(request.name, found, self.augment, *sizes, request.framing, request.skip_damaged)


def find_source(name: str) -> Source:
    """The source of ``data=NAME``. Raises BadInput with the most similar name if there is none."""
    kind, colon, path = name.partition(":")
    found = SOURCES.get(kind + PATH) if path else SOURCES.get(name) if not colon else None
    if found is None:
        raise unknown(name)
    return found


def data_root(given: str | None) -> Path:
    """The folder of downloaded data sets: ``given``, else $ASFEDBRIDGE_DATA, else the user's cache folder."""
    chosen = given or os.environ.get("ASFEDBRIDGE_DATA")
    if chosen:
        return Path(chosen).expanduser()
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The XDG specification requires that relative paths are ignored.
    return (cache if cache.is_absolute() else Path.home() / ".cache") / "asfedbridge"


def load(
    name: str,
    root: Path,
    image_size: int = 0,
    augment: str = "auto",
    skip_damaged: bool = False,
    framing: Framing = DEFAULT_FRAMING,
) -> Dataset:
    """Loads a data set into memory, or as a memory map.

    ``image_size`` crops the central square of each image and resizes it once. With "resized-crop+flip", images are kept
    as stored and each batch is scaled.
    """
    check_image_size(image_size)
    data = find_source(name).load(Request(name, root, image_size, augment, skip_damaged, framing))
    if augment == "auto":
        return data
    scaled_to = data.scaled_to or image_size or data.height
    return replace(data, augment=augment, scaled_to=scaled_to if augment == RESIZED else 0)


def fetch(name: str, root: Path, progress: Progress = lambda name, done, total: None) -> Path:
    """Downloads the files of a data set into `root` and returns their folder. Valid files are kept.

    An archive that already is in `root` is used without network access.
    """
    source = SOURCES.get(name)
    if source and source.fetch:
        return source.fetch(root, progress)
    if source and source.instructions:
        raise BadInput(f"data {name!r} cannot be fetched automatically: {source.instructions(root)}")
    known = ", ".join(other.name for other in SOURCES.values() if other.fetch)
    raise BadInput(f"data {name!r} cannot be fetched: choose from {known}; other sets need no download")


def describe(root: Path | None = None) -> list[tuple[str, str, str]]:
    """(name, description, origin) of every source. With `root`, the origin says whether the files are available."""
    rows = []
    for name, source in SOURCES.items():
        origin = source.origin or f"asfedbridge data fetch {name}"
        if source.instructions:
            origin = f"manual download, see {origin}"
        if root is not None and source.is_here and source.is_here(root):
            origin = f"in {root}"
        rows.append((name, source.about, origin))
    return rows


def check(name: str, root: Path) -> list[str]:
    """Report lines about valid files. Raises BadInput that names all missing and damaged ones."""
    source = find_source(name)
    lines = source.check(root) if source.check else []
    data = load(name, root)
    size = f"{data.channels}x{data.height}x{data.width}"
    what = "images" if data.frames == 1 else f"examples of {data.frames} frames"
    counts = f"{len(data.y_train)} training and {len(data.y_test)} test {what}"
    return [*lines, f"{name}: {counts}, {size}, {len(data.classes)} classes: good"]


def unknown(name: str) -> BadInput:
    kind = name.partition(":")[0]
    known = [source.partition(":")[0] for source in SOURCES]
    near = difflib.get_close_matches(kind.lower(), known, n=1)
    full = next((source for source in SOURCES if near and source.startswith(near[0])), None)
    if ":" not in name and name.lower().endswith(".npz"):
        full = f"npz:{name}"
    elif ":" not in name and ("/" in name or Path(name).is_dir()):
        full = f"folder:{name}"
    hint = f"did you mean {full}? " if full else ""
    return BadInput(f"data {name!r} is not known: {hint}choose from {', '.join(SOURCES)}")
