"""Federations of the user's own models and data sets, built from Python objects."""

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from asfedbridge.core import seeds
from asfedbridge.core.errors import BadInput, nearest
from asfedbridge.core.method import METHODS, Method, register_method
from asfedbridge.core.task import ClientInfo, Kind, Task, first_of_each
from asfedbridge.data.adapters import as_arrays
from asfedbridge.data.dataset import check_image_size, check_shape, measure
from asfedbridge.data.loader import Shard
from asfedbridge.data.memory_map import read
from asfedbridge.methods import DEFAULT
from asfedbridge.models import zoo
from asfedbridge.models.adapter import Adapter, ModuleMaker
from asfedbridge.models.registry import MODELS, UNNAMED, Model, register_unnamed
from asfedbridge.runs.fleet import ENTRY, parse_entry, parse_fleet
from asfedbridge.runs.recipes import RECIPES
from asfedbridge.runs.setting import PROBE_IMAGES, Setting, make_task
from asfedbridge.runs.spec import IN_PYTHON, Spec, apply_overrides

TEST_SHARE = 0.2  # share held out from a data set without test data


@dataclass(frozen=True, eq=False)
class Participant:
    """One client of a ``Federation``: a model and its own data.

    ``model`` is one of

    - a function or class that is called without arguments and returns a ``torch.nn.Module``: initial weights come from
      the run's seed, and participants with the same function have the same ones;
    - a ``torch.nn.Module``, which is copied: clients start with its weights;
    - the name of a registered model, with a width if it has one: ``"resnet18@0.25"``.

    A module that returns an ``Output`` is used unchanged. For one that returns logits, [B, classes], the feature that
    methods compare across clients is the input of its last linear layer; if its size is not ``feature_dim``, a
    trainable linear projection is added. A spiking module (``kind="snn"``) is reset before each batch and receives the
    image in each of ``T`` time steps: a SpikingJelly network in step mode "m" as [T, B, C, H, W], any other in one
    call per step.

    ``dataset`` is map-style: a length, and items (image, label) or rows with an image and a label column; or a pair of
    arrays (x, y). Images are uint8, or floats from 0 to 1 that are not normalised: each participant's images are
    normalised by the mean and standard deviation of its own training images. Without ``test``, a fifth of the data set
    is held out for testing.

    >>> afb.Participant(MyNetwork, train_set, kind="snn", T=4, test=test_set)
    """

    model: str | nn.Module | Callable[[], nn.Module]
    dataset: Any = field(repr=False)  # too large to print
    kind: Kind = "ann"
    T: int = 4  # time steps of an SNN
    test: Any = field(default=None, repr=False)


class Federation:
    """A method and its clients, ready for ``federate``.

    ``method`` is a name or an instance of a ``Method``. Further settings are keys of the specification: ``epochs``,
    ``batch_size``, ``seed``, ``optimiser__lr_ann`` ... The recipe provides all others. ``classes`` is the number of
    classes, by default the largest label plus one. ``feature_dim`` is by default the size of the models' features if
    all have the same.

    >>> clients = [afb.Participant(MyNetwork, data) for data in data_sets]
    >>> federation = afb.Federation(method="as-fedbridge", clients=clients, epochs=2)
    >>> result = afb.federate(federation, rounds=20)
    """

    def __init__(
        self,
        method: str | Method = DEFAULT,
        clients: Sequence[Participant] = (),
        *,
        recipe: str = "quickstart",
        classes: int | None = None,
        **settings: Any,
    ) -> None:
        if not isinstance(clients, Sequence) or not clients:
            raise BadInput(f"clients={clients!r} must be a list of at least one Participant")
        if classes is not None and (type(classes) is not int or classes < 1):
            raise BadInput(f"classes={classes!r} must be the number of classes")
        for number, client in enumerate(clients):
            if not isinstance(client, Participant):
                raise BadInput(f"clients[{number}]={client!r} must be a Participant(model, dataset)")
        self.method, self.clients, self.recipe, self.classes = method, list(clients), recipe, classes
        self.settings = settings

    def prepare(self, **changes: Any) -> tuple[Spec, Setting]:
        """The specification with ``changes``, and the data of all participants, checked."""
        entries = self._register_models()
        settings = dotted({**self.settings, **changes})
        for key in ("data", "fleet", "partition", "alpha", "method"):
            if key in settings:
                raise BadInput(f"{key}={settings[key]}: the participants of the Federation determine it; leave it out")
        spec = start_recipe(self.recipe, self.method)
        settings.setdefault("feature_dim", self._feature_size() or spec.feature_dim)
        spec = apply_overrides(spec, {**settings, "data": IN_PYTHON, "fleet": ",".join(entries)})
        return spec, make_setting(self.clients, spec, self.classes)

    def _register_models(self) -> list[str]:
        """Register the participants' models, replacing those of another federation; return the fleet's entries."""
        names: dict[int, str] = {}
        models: dict[str, Model] = {}
        entries = []
        for number, client in enumerate(self.clients):
            where = f"clients[{number}]"
            own = client.model
            if isinstance(own, str):
                name = own
            elif callable(own):
                if client.kind not in ("ann", "snn"):
                    raise BadInput(f"{where}: kind={client.kind} is for registered models; use ann or snn")
                if id(own) not in names:
                    names[id(own)] = _unused(own, models)
                    models[names[id(own)]] = Model(ModuleMaker(own), "of a Federation", None, family=False)
                name = names[id(own)]
            else:
                raise BadInput(f"{where}: model={own!r} must be a torch.nn.Module, a function or the name of a model")
            entries.append(f"{name}:{client.kind}" + (f":T={client.T}" if client.kind == "snn" else ""))
        register_unnamed(models)
        zoo.forget_models()
        for number, (entry, client) in enumerate(zip(entries, self.clients, strict=True)):
            match = ENTRY.fullmatch(entry)
            if not match or (isinstance(client.model, str) and set(client.model) & set("*:,")):
                raise BadInput(
                    f"clients[{number}].model={client.model!r}: give the name of one model, with its width if it has "
                    f"one, e.g. 'resnet18@0.25'"
                )
            parse_entry(match, client.T, f"clients[{number}]")
        return entries

    def _feature_size(self) -> int | None:
        """The feature size that all participants share; None if they differ or it is not known."""
        sizes: set[int | None] = set()
        for number, client in enumerate(self.clients):
            if isinstance(client.model, str):
                return None
            with torch.random.fork_rng(devices=[]), _naming(number):
                module = ModuleMaker(client.model).make_module()
            linear = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
            sizes.add(linear[-1].in_features if linear else None)
        return sizes.pop() if len(sizes) == 1 else None


def start_recipe(name: str, method: str | Method) -> Spec:
    """A recipe with a method, given by name or as an instance, whose class need not be registered."""
    if name not in RECIPES:
        raise BadInput(f"'{name}' is neither a recipe nor a .toml file{nearest(name, RECIPES)}")
    if isinstance(method, str):
        return RECIPES[name](method)
    if not isinstance(method, Method):
        raise BadInput(f"method={method!r} must be the name or an instance of a Method")
    cls = type(method)
    if METHODS.get(getattr(cls, "name", "")) is not cls:
        register_method(vars(cls).get("name", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", cls.__name__).lower()))(cls)
    return replace(RECIPES[name](cls.name), method=method)


def dotted(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Keys as in the specification: ``method__mu`` becomes method.mu."""
    return {key.replace("__", "."): value for key, value in keys.items()}


def make_setting(clients: Sequence[Participant], spec: Spec, classes: int | None = None) -> Setting:
    """The data of all participants as shards, and their common task."""
    if spec.method.pools_data:
        raise BadInput(
            f"method={spec.method.name} needs all data in one place, but participants keep theirs; use another"
        )
    check_image_size(spec.image_size)
    augment = "none" if spec.augment == "auto" else spec.augment
    shards, digest, shape = [], hashlib.sha256(), None
    for number, client in enumerate(clients):
        where = f"clients[{number}]"
        generator = seeds.generator(spec.seed, "client", number, "test")
        train, test = _halves(client, spec, generator, where)
        for half, (x, y) in (("dataset", train), ("test", test)):
            check_shape(f"{where}.{half}", *x.shape[2:])
            shape = shape or x.shape[1:]
            if x.shape[1:] != shape:
                sizes = f"{'x'.join(map(str, x.shape[1:]))}, the first ones {'x'.join(map(str, shape))}"
                raise BadInput(f"{where}.{half}: images are {sizes}; give image_size=N, or the same number of channels")
            for array in (x, y):
                digest.update(repr(tuple(array.shape)).encode() + array.contiguous().numpy().tobytes())
        shards.append(Shard(*train, *test, *measure(train[0]), augment))
    assert shape is not None
    largest = max(int(y.max()) for s in shards for y in (s.y_train, s.y_test)) + 1
    if classes is not None and classes < largest:
        raise BadInput(f"classes={classes}: there is a label {largest - 1}; give at least {largest}")
    if classes is None:
        _check_labels(shards, largest)
    fleet = parse_fleet(spec.fleet, spec.T)
    task = make_task(spec, classes or largest, shape[0], shape[1], 1, fleet)
    infos = [replace(c, train_size=s.train_size, test_size=s.test_size) for c, s in zip(fleet, shards, strict=True)]
    for info in infos:
        with _naming(info.id):
            zoo.check_backbone(task, info)
    spec.method.check(task, infos)
    notes = (*_notes(task, infos), *spec.method.notes(task))
    return Setting(task, infos, shards, digest.hexdigest(), IN_PYTHON, _probe(shards), notes)


def _check_labels(shards: Sequence[Shard], classes: int) -> None:
    """Labels are class numbers from 0; a gap is a label that marks something else, or a count from 1."""
    found = torch.cat([y for shard in shards for y in (shard.y_train, shard.y_test)]).unique()
    if len(found) < classes:
        missing = next(number for number in range(classes) if number == len(found) or found[number] != number)
        raise BadInput(
            f"labels: no participant has an image of class {missing}, the largest label is {classes - 1}; number the "
            f"labels from 0 without gaps, or give classes={classes}"
        )


@contextmanager
def _naming(number: int) -> Iterator[None]:
    """Prefixes errors about a model with its participant."""
    try:
        yield
    except BadInput as error:
        raise BadInput(f"clients[{number}].model: {error}") from (error.__cause__ or error)


def _notes(task: Task, infos: Sequence[ClientInfo]) -> list[str]:
    """Notes about projections that were added to the user's models."""
    added = [zoo.build_backbone(task, info) for info in first_of_each(infos) if info.model in UNNAMED]
    sizes = {m.projector.in_features for m in added if isinstance(m, Adapter) and m.projector is not None}
    return [f"features of size {size} are projected to {task.feature_dim}" for size in sorted(sizes)]


def _halves(
    client: Participant, spec: Spec, generator: torch.Generator, where: str
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Training and test examples; without test data, a share of the training examples is held out."""
    x, y = as_arrays(client.dataset, image_size=spec.image_size, where=f"{where}.dataset")
    if client.test is not None and not spec.holdout:
        return (x, y), as_arrays(client.test, image_size=spec.image_size, where=f"{where}.test")
    if len(y) < 2:
        raise BadInput(f"{where}.dataset: {len(y)} example; give at least 2, or test data")
    held = min(len(y) - 1, max(1, round((spec.holdout or TEST_SHARE) * len(y))))
    order = torch.randperm(len(y), generator=generator)
    test, train = order[:held].sort().values, order[held:].sort().values
    return (x[train], y[train]), (x[test], y[test])


def _probe(shards: Sequence[Shard]) -> Shard:
    """Test images of all participants, for comparing clients; normalised by all training images."""
    images, labels = (
        torch.cat([read(s.x_test) for s in shards])[:PROBE_IMAGES],
        torch.cat([s.y_test for s in shards])[:PROBE_IMAGES],
    )
    statistics = measure(torch.cat([read(s.x_train) for s in shards]))
    return Shard(images[:0], labels[:0], images, labels, *statistics, "none")


def _unused(model: object, taken: Mapping[str, Model]) -> str:
    """An unused name for a user's model, derived from its class or function."""
    named = model if hasattr(model, "__name__") else getattr(model, "func", type(model))
    stem = re.sub(r"[^\w.-]", "", getattr(named, "__name__", type(named).__name__)) or "model"
    name, count = stem, 1
    while name in taken or (name in MODELS and name not in UNNAMED):
        count += 1
        name = f"{stem}-{count}"
    return name
