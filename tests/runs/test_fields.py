from dataclasses import dataclass, fields
from typing import Literal

import pytest

from asfedbridge.core.method import METHODS
from asfedbridge.core.task import Neuron, Optimiser
from asfedbridge.runs.fields import describe_fields
from asfedbridge.runs.recipes import RECIPES
from asfedbridge.runs.spec import Spec, from_table
from asfedbridge.runs.toml import write_toml


@dataclass
class Parent:
    size: int = 3  # of the parent
    mode: Literal["a#b", "c"] = "a#b"  # which way
    bare: int = 0


@dataclass
class Child(Parent):
    size: int = 4  # of the child


def test_comments_and_choices_describe_a_field() -> None:
    assert describe_fields(Parent) == {"size": "of the parent", "mode": "which way; one of a#b, c", "bare": ""}


def test_a_subclass_that_redeclares_a_field_describes_it() -> None:
    assert describe_fields(Child)["size"] == "of the child"
    assert describe_fields(Child)["mode"] == "which way; one of a#b, c"


def test_every_field_of_a_specification_is_described() -> None:
    known = describe_fields(Spec)
    assert [f.name for f in fields(Spec) if not known[f.name] and f.name not in ("method", "neuron", "optimiser")] == []


@pytest.mark.parametrize("cls", [Neuron, Optimiser, *METHODS.values()], ids=lambda cls: cls.__name__)
def test_every_field_of_its_tables_is_described(cls: type) -> None:
    assert [name for name, text in describe_fields(cls).items() if not text] == []


def test_a_commented_specification_reads_back_as_itself() -> None:
    import tomllib

    for recipe in RECIPES.values():
        spec = recipe("as-fedbridge")
        text = write_toml(spec, comments=True)
        assert from_table(tomllib.loads(text), RECIPES["paper"]("fedavg")) == spec
        assert "rounds = " in text
        assert "# number of communication rounds" in text
