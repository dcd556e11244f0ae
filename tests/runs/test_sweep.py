"""Lists of values and seeds as several runs."""

from typing import Any

import pytest

from asfedbridge.core.errors import BadInput
from asfedbridge.runs.sweep import expand, list_values


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        ("rounds", "10,20", ["10", "20"]),
        ("rounds", "[10, 20]", ["10", "20"]),
        ("alpha", "0.1", ["0.1"]),
        ("augment", "none,crop", ["none", "crop"]),
        ("skip_damaged", "true,false", ["true", "false"]),
        ("neuron.decay", "0.25,0.5", ["0.25", "0.5"]),
        ("optimiser.name", "sgd,adamw", ["sgd", "adamw"]),
        ("method", "fml,fedavg", ["fml", "fedavg"]),
        ("method.bridge_lr", "0.01,0.02", ["0.01", "0.02"]),
        ("method.alpha_ce", "1.1,0.55", ["1.1,0.55"]),  # first and last value of a ramp
        ("method.alpha_ce", "[1.1,0.55],[1,1]", ["[1.1, 0.55]", "[1, 1]"]),
        ("data", "digits,npz:a.npz", ["digits", "npz:a.npz"]),
        ("data", "npz:a,b.npz", ["npz:a,b.npz"]),
        ("partition", "iid,classes:2", ["iid", "classes:2"]),
        ("partition", "iid,flwr:X(a=1,b=2)", ["iid", "flwr:X(a=1,b=2)"]),
        ("fleet", "5*resnet18:ann,5*resnet18:snn", ["5*resnet18:ann,5*resnet18:snn"]),
        ("fleet", "3+7,scale@0.25", ["3+7", "scale@0.25"]),
        ("no_such_key", "1,2", ["1,2"]),
    ],
)
def test_what_is_a_list_of_values(key: str, text: str, expected: list[str]) -> None:
    assert list_values(key, text) == expected


def test_no_list_is_one_run_without_a_name() -> None:
    (name,) = runs = expand("smoke", {"rounds": "3"})
    assert name == ""
    assert runs[""].rounds == 3


def test_all_combinations_are_named_by_what_differs() -> None:
    runs = expand("smoke", {"rounds": "3,4", "epochs": "2", "method.bridge_lr": "0.1,0.2"}, [0, 1])
    assert len(runs) == 8
    spec: Any = runs["rounds=4,bridge_lr=0.2,seed=1"]
    assert (spec.rounds, spec.epochs, spec.method.bridge_lr, spec.seed) == (4, 2, 0.2, 1)
    assert list(expand("smoke", {}, [7])) == ["seed=7"]


def test_a_field_is_for_the_methods_that_have_it() -> None:
    runs = expand("smoke", {"method": "standalone,fedprox", "method.mu": "0.1,0.2"})
    assert list(runs) == ["method=standalone", "method=fedprox,mu=0.1", "method=fedprox,mu=0.2"]
    with pytest.raises(BadInput, match=r"unknown key 'method.mu'"):
        expand("smoke", {"method": "standalone,fedavg", "method.mu": "0.1,0.2"})


def test_folder_names_are_safe_and_distinct() -> None:
    names = list(expand("smoke", {"data": "npz:/a b/x.npz,npz:/a-b/x.npz,npz:../x.npz"}))
    assert len(set(names)) == 3
    assert not any(set(name) & set("/ :*'\"") for name in names)
    long = list(expand("smoke", {"data": f"npz:{'x' * 300}.npz,npz:{'x' * 300}y.npz"}))
    assert len(set(long)) == 2
    assert max(map(len, long)) <= 100


def test_seeds_are_given_once() -> None:
    with pytest.raises(BadInput, match="seed=3 with seeds=0,1: give the seeds in one place"):
        expand("smoke", {"seed": "3"}, [0, 1])


@pytest.mark.long
def test_too_many_combinations() -> None:
    numbers = ",".join(map(str, range(1, 1000)))
    with pytest.raises(BadInput, match="more than 10000 combinations"):
        expand("smoke", {"rounds": numbers, "epochs": numbers})
