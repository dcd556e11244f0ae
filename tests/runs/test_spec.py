"""Specifications: every field can be set, is checked and survives TOML."""

import dataclasses
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

from asfedbridge.core.errors import BadInput
from asfedbridge.core.method import METHODS
from asfedbridge.runs.recipes import RECIPES, quickstart
from asfedbridge.runs.spec import (
    RANGES,
    Spec,
    apply_overrides,
    from_table,
    known_keys,
    to_table,
)
from asfedbridge.runs.toml import parse_assignment, parse_value, read_toml, write_toml

RUNS = [(recipe, method) for recipe in RECIPES for method in sorted(METHODS)]


def refused(spec: Spec, **overrides: Any) -> str:
    with pytest.raises(BadInput) as caught:
        apply_overrides(spec, {key.replace("__", "."): value for key, value in overrides.items()})
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def value_of(spec: Spec, key: str) -> Any:
    value: Any = spec
    for part in key.split("."):
        value = getattr(value, part)
    return value


def hint_of(spec: Spec, key: str) -> Any:
    head, _, rest = key.rpartition(".")
    return get_type_hints(type(value_of(spec, head) if head else spec))[rest]


def changed(value: Any, hint: Any) -> Any:
    """Another value of the same type, valid in every field."""
    if get_origin(hint) is Literal:
        return next(choice for choice in get_args(hint) if choice != value)
    if get_origin(hint) is tuple:
        return tuple(changed(v, h) for v, h in zip(value, get_args(hint), strict=True))
    if hint is bool:
        return not value
    if hint is str:
        others = {"dirichlet": "classes:2", "auto": "cuda:1"}  # for fields that accept only certain texts
        return "3*resnet18:ann" if value.endswith(":snn") else others.get(value, "npz:other.npz")
    if hint is int:
        return value + 1
    return value * 0.5 + 0.015625


@pytest.mark.parametrize(("recipe", "method"), RUNS)
def test_every_recipe_survives_tables_and_toml(tmp_path: Path, recipe: str, method: str) -> None:
    spec = RECIPES[recipe](method)
    assert spec.method.name == method
    file = tmp_path / "spec.toml"
    file.write_text(write_toml(spec), encoding="utf-8")
    for back in (from_table(to_table(spec), quickstart()), from_table(read_toml(file), quickstart())):
        assert back == spec
        assert type(back.method) is type(spec.method)
        assert back.digest() == spec.digest()


@pytest.mark.parametrize(
    ("recipe", "wide"), [("quickstart", "vgg9@0.25"), ("cpu", "vgg9@0.125"), ("paper", "resnet18")]
)
def test_a_named_fleet_has_the_family_and_width_of_the_recipe(recipe: str, wide: str) -> None:
    spec = apply_overrides(RECIPES[recipe]("fml"), {"fleet": "3+7"})
    assert spec.fleet == f"3*{wide}:ann,7*{wide}:snn"
    assert to_table(spec)["fleet"] == spec.fleet
    narrow = apply_overrides(spec, {"fleet": "scale"})
    assert apply_overrides(narrow, {"fleet": "3+7"}) == spec  # the widest client determines the width
    assert apply_overrides(spec, {"fleet": "bnn@0.5"}).fleet == f"10*{wide.partition('@')[0]}@0.5:bnn"


def test_recipes_are_as_documented() -> None:
    assert list(RECIPES) == ["quickstart", "cpu", "extended", "smoke", "paper"]
    paper = RECIPES["paper"]("as-fedbridge")
    assert (paper.data, paper.fleet, paper.alpha, paper.rounds) == (
        "cifar10",
        "5*resnet18:ann,5*resnet18:snn",
        0.1,
        100,
    )
    assert (paper.epochs, paper.T, paper.participation) == (5, 4, 1.0)
    assert quickstart().data == "digits"
    with pytest.raises(BadInput, match="method=fedavgg: unknown method; did you mean 'fedavg'"):
        quickstart("fedavgg")


@pytest.mark.parametrize("recipe", RECIPES)
def test_shared_networks_are_equal_across_methods(recipe: str) -> None:
    """Methods that communicate a small network have the same network and learning rate."""
    names = ("bridge_width", "bridge_norm", "bridge_lr", "bridge_weight_decay", "bridge_momentum")
    settings = {
        name: [getattr(RECIPES[recipe](method).method, name) for method in ("as-fedbridge", "fml", "mh-pflid")]
        for name in names
    }
    assert all(len(set(values)) == 1 for values in settings.values()), settings


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_key_reaches_its_field(tmp_path: Path, method: str) -> None:
    spec = quickstart(method)
    keys = [key for key in known_keys(spec) if key not in ("method", "method.name")]
    assert {"rounds", "neuron.decay", "optimiser.lr_ann"} <= set(keys)
    assert {f"method.{f.name}" for f in dataclasses.fields(METHODS[method])} <= set(keys)
    for key in keys:
        value = changed(value_of(spec, key), hint_of(spec, key))
        found = apply_overrides(spec, {key: list(value) if isinstance(value, tuple) else value})
        assert value_of(found, key) == value, key
        others = [other for other in keys if other != key]
        assert [value_of(found, k) for k in others] == [value_of(spec, k) for k in others], key
        assert (found.digest() == spec.digest()) == (
            key in ("checkpoint_every", "keep_checkpoints", "snapshot_every", "client_files")
        ), key
        (tmp_path / "s.toml").write_text(write_toml(found))
        assert from_table(read_toml(tmp_path / "s.toml"), spec) == found, key


def test_every_key_can_be_typed_as_it_is_printed() -> None:
    """KEY=VALUE accepts the values that `show` prints."""
    spec = quickstart()
    for key in known_keys(spec)[1:]:
        table: Any = to_table(spec)
        for part in key.split("."):
            table = table[part]
        text = str(table).lower() if isinstance(table, bool) else str(table)
        assert apply_overrides(spec, dict([parse_assignment(f"{key}={text}")])) == spec, key


def test_the_method_is_changed_with_and_without_fields() -> None:
    spec = quickstart()
    assert apply_overrides(spec, {"method": "fedprox", "method.mu": 0.5}).method == METHODS["fedprox"](mu=0.5)  # type: ignore[call-arg]
    assert apply_overrides(spec, {"method.mu": 0.5, "method": "fedprox"}).method == METHODS["fedprox"](mu=0.5)  # type: ignore[call-arg]
    assert apply_overrides(spec, {"method.name": "fedavg"}).method == METHODS["fedavg"]()
    assert apply_overrides(spec, {"method": "as-fedbridge"}).method == spec.method  # the recipe's values are kept


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("round", "rounds"),
        ("batchsize", "batch_size"),
        ("method.bridge_with", "method.bridge_width"),
        ("neuron.treshold", "neuron.threshold"),
        ("optimiser.lr_an", "optimiser.lr_ann"),
        ("optimizer.lr_ann", "optimiser.lr_ann"),
        ("optimizer", "optimiser.name"),
    ],
)
def test_an_unknown_key_names_the_nearest(key: str, near: str) -> None:
    message = refused(quickstart(), **{key: 1})
    assert f"unknown key '{key}'" in message
    assert f"did you mean '{near}'" in message


def test_a_field_of_another_method_is_unknown() -> None:
    assert "unknown key 'method.mu'" in refused(quickstart("fedavg"), method__mu=0.1)


@pytest.mark.parametrize(("name", "least", "most"), RANGES)
def test_every_range_is_checked_at_both_ends(name: str, least: float, most: float) -> None:
    whole = get_type_hints(Spec)[name] is int
    step = 1 if whole else least / 2 or 0.001
    for good in (least, most):
        value = int(good) if whole else float(good)
        changes = {"rounds": 10**6, name: value}
        assert value_of(apply_overrides(quickstart(), changes), name) == value
    for bad in (least - step, most + (1 if whole else most), -1):
        assert f"{name}=" in refused(quickstart(), **{name: bad})


@pytest.mark.parametrize("method", sorted(METHODS))
def test_the_error_names_every_key_of_a_wrong_type(method: str) -> None:
    spec = quickstart(method)
    for key in known_keys(spec):
        if key in ("method", "method.name"):
            continue
        hint = hint_of(spec, key)
        wrong: list[Any] = [{"a": 1}, [1, 2, 3], [], None]
        if hint is int:
            wrong += ["x", 1.5, True, "1"]
        elif hint is float or get_origin(hint) is tuple:
            wrong += ["x", True, float("nan"), float("inf"), -float("inf"), -1.0]
        elif hint is bool:
            wrong += [1, 0, "yes", 0.0]
        else:
            wrong += [1, 0.5, True]
        for value in wrong:
            assert f"{key}=" in refused(spec, **{key: value}), (key, value)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_the_error_names_a_negative_hyper_parameter(method: str) -> None:
    spec = quickstart(method)
    for key in known_keys(spec):
        hint = hint_of(spec, key) if "." in key and key != "method.name" else None
        if hint in (int, float) or get_origin(hint) is tuple:
            assert f"{key}=" in refused(spec, **{key: -1 if hint is int else -0.5})


@pytest.mark.parametrize(
    ("key", "value", "word"),
    [
        ("optimiser.momentum", 1.0, "momentum=1.0"),
        ("neuron.decay", 1.5, "decay"),
        ("neuron.threshold", 0.0, "threshold"),
        ("neuron.sharpness", 0.0, "sharpness"),
        ("augment", "flip", "augment=flip: unknown choice; did you mean 'crop+flip'?"),
        ("partition", "dirichlett", "partition=dirichlett: unknown choice; did you mean 'dirichlet'?"),
        ("partition", "clases:2", "partition=clases:2: unknown choice; did you mean 'classes:K'?"),
        ("partition", "classes:0", "partition=classes:0: write classes:K with an integer K above 0"),
        ("partition", 2, "partition=2 must be text"),
        ("method.direction", "both-ways", "method.direction=both-ways: unknown choice"),
        ("method", 5, "method=5 must be the name or an instance of a Method"),
        ("method", ["fedavg"], "method="),
        ("method", "fedav", "method=fedav: unknown method; did you mean 'fedavg'?"),
        ("method.name", ["fedavg"], "method"),
        ("method.name", 5, "method=5: unknown method"),
        ("neuron", 1, "neuron=1 must be a table"),
        ("optimiser", "sgd", "optimiser='sgd' must be a table"),
        ("fleet", "5*resnet19:ann", "fleet entry 1 '5*resnet19:ann': unknown model 'resnet19'"),
    ],
)
def test_other_bad_values(key: str, value: Any, word: str) -> None:
    assert word in refused(quickstart(), **{key: value})


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("head", ["method", "neuron"])
def test_a_table_given_as_a_number_and_by_fields_is_refused(head: str, order: int) -> None:
    """In either order on the command line."""
    field = {"method": "method.bridge_lr", "neuron": "neuron.decay"}[head]
    words = [(head, 5), (field, 0.1)][::order]
    with pytest.raises(BadInput, match=f"{head}=5 must be "):
        apply_overrides(quickstart(), dict(words))


@pytest.mark.parametrize("text", ["0.4", "0.4,0.4", "[0.4, 0.4]", "0.4, 0.4"])
def test_a_constant_ramp(text: str) -> None:
    found = apply_overrides(quickstart(), dict([parse_assignment(f"method.alpha_teach={text}")]))
    assert found.method.alpha_teach == (0.4, 0.4)  # type: ignore[attr-defined]


@pytest.mark.parametrize("text", ["0.4,0.1", "[0.4,0.1]", "0.4, 0.1", "4e-1,1e-1"])
def test_a_ramp_with_two_ends(text: str) -> None:
    found = apply_overrides(quickstart(), dict([parse_assignment(f"method.alpha_teach={text}")]))
    assert found.method.alpha_teach == (0.4, 0.1)  # type: ignore[attr-defined]


@pytest.mark.parametrize("text", ["1,2,3", "[1]", "a,b", "0.4,x", "0.4,-1", "nan,1", "[[1,2],[3,4]]"])
def test_an_invalid_ramp(text: str) -> None:
    with pytest.raises(BadInput, match=r"method\.alpha_teach="):
        apply_overrides(quickstart(), dict([parse_assignment(f"method.alpha_teach={text}")]))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4", 4), ("-4", -4), ("0.1", 0.1), ("1e-3", 1e-3), ("true", True), ("false", False),
        ("[0.1, 0.2]", [0.1, 0.2]),
        ("0.1,0.2", [0.1, 0.2]), ("1,2,3", [1, 2, 3]), ("digits", "digits"), ("npz:/a b/c.npz", "npz:/a b/c.npz"),
        ('"4"', "4"), ("'x'", "x"), ("True", "True"), ("", ""), ("2*resnet18@0.5:ann,resnet18:snn:T=2",) * 2,
        ("2024-01-01", "2024-01-01"), ("{a = 1}", "{a = 1}"), ("npz:a=b.npz", "npz:a=b.npz"), ("a,b", "a,b"),
        ("C:\\x", "C:\\x"), ("1_000", 1000),
    ],
)  # fmt: skip
def test_values_of_the_command_line(text: str, value: Any) -> None:
    found = parse_value(text)
    assert found == value
    assert type(found) is type(value)


def test_assignments() -> None:
    assert parse_assignment("rounds=5") == ("rounds", 5)
    assert parse_assignment(" rounds = 5 ") == ("rounds", 5)
    assert parse_assignment("data=npz:a=b.npz") == ("data", "npz:a=b.npz")
    for bad in ("rounds", "=5", " =5"):
        with pytest.raises(BadInput, match="is not KEY=VALUE"):
            parse_assignment(bad)


@pytest.mark.parametrize(
    "path",
    ["npz:a b.npz", 'npz:"quoted".npz', "npz:back\\slash", "npz:tab\there", "npz:\xfc\u4e2d\U0001f642", "npz:#no"],
)
def test_text_survives_toml(tmp_path: Path, path: str) -> None:
    spec = apply_overrides(quickstart(), {"data": path})
    (tmp_path / "s.toml").write_text(write_toml(spec), encoding="utf-8")
    assert from_table(read_toml(tmp_path / "s.toml"), quickstart()) == spec


@pytest.mark.parametrize("value", [1e-3, 1e-300, 123456.789, 1 / 3, 1e6, 5e-324])
def test_numbers_survive_toml(tmp_path: Path, value: float) -> None:
    spec = apply_overrides(quickstart(), {"optimiser.lr_ann": value})
    (tmp_path / "s.toml").write_text(write_toml(spec))
    assert read_toml(tmp_path / "s.toml")["optimiser"]["lr_ann"] == value


def test_toml_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no such file"):
        read_toml(tmp_path / "none.toml")
    for content in (b"rounds = ", b"\xff\xfe", b"rounds = 1\nrounds = 2"):
        (tmp_path / "bad.toml").write_bytes(content)
        with pytest.raises(BadInput, match=r"bad\.toml: is not valid TOML") as caught:
            read_toml(tmp_path / "bad.toml")
        assert len(str(caught.value).splitlines()) == 1


def test_a_file_may_be_partial_but_not_wrong() -> None:
    spec = from_table({"rounds": 3, "method": {"name": "fedprox"}}, quickstart())
    assert (spec.rounds, spec.method, spec.fleet) == (3, METHODS["fedprox"](), quickstart().fleet)
    assert from_table({"method": "fedavg"}, quickstart()).method == METHODS["fedavg"]()
    for table, word in (({"roundz": 3}, "roundz"), ({"method": {"mu": 1.0}}, "method.mu"), ({"neuron": []}, "neuron")):
        with pytest.raises(BadInput, match=word):
            from_table(table, quickstart())


def test_evaluate_every_needs_full_participation() -> None:
    assert apply_overrides(quickstart(), {"evaluate_every": 5}).evaluate_every == 5
    with pytest.raises(BadInput, match=r"^evaluate_every=5 with participation=0\.5: .*set one of them to 1$"):
        apply_overrides(quickstart(), {"evaluate_every": 5, "participation": 0.5})


def test_compression_refuses_averaged_statistics() -> None:
    assert apply_overrides(quickstart("fedavg"), {"compress": "int8"}).compress == "int8"
    with pytest.raises(BadInput, match=r"^compress=int8 with method\.bn_buffers=averaged: .*method\.bn_buffers=local$"):
        apply_overrides(quickstart("fedavg"), {"compress": "int8", "method.bn_buffers": "averaged"})


def test_the_digest_identifies_results() -> None:
    spec = quickstart()
    assert spec.digest() == quickstart().digest()
    assert dataclasses.replace(spec, checkpoint_every=7).digest() == spec.digest()
    assert dataclasses.replace(spec, seed=7).digest() != spec.digest()
    same = {("extended", "sfedhifi")}  # no extension of `extended` applies to it
    runs = [run for run in RUNS if run not in same]
    assert len({RECIPES[r](m).digest() for r, m in runs}) == len(runs)


def test_twin_rounds_must_be_fewer_than_rounds() -> None:
    message = refused(quickstart(), twin_rounds=5, rounds=5)
    assert "twin_rounds=5 with rounds=5: SNN clients would never train as SNNs" in message


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "cuda:0", "cuda:12", "mps"])
def test_devices(device: str) -> None:
    spec = apply_overrides(quickstart(), {"device": device})
    assert spec.device == device


@pytest.mark.parametrize("device", ["", "gpu", "cuda:", "cuda:x", "cuda:-1", "mps:0", "cpu ", "meta"])
def test_an_unknown_device_is_refused(device: str) -> None:
    assert refused(quickstart(), device=device).startswith(f"device={device}: unknown device; use auto, cpu, cuda")


def test_an_unknown_precision_or_optimiser_is_refused() -> None:
    assert "precision=fp8" in refused(quickstart(), precision="fp8")
    assert "optimiser.name=adam" in refused(quickstart(), optimiser__name="adam")
