import importlib.util
from typing import Any

import numpy as np
import pytest

from asfedbridge.core.errors import BadInput
from asfedbridge.data.flwr_partitioner import parse_call
from asfedbridge.data.partition_names import check_partition, split

Y_TRAIN = np.random.default_rng(1).permutation(np.repeat(np.arange(10), 100))
Y_TEST = np.random.default_rng(2).permutation(np.repeat(np.arange(10), 30))
INSTALLED = importlib.util.find_spec("flwr_datasets") is not None
needs_library = pytest.mark.skipif(not INSTALLED, reason="the package flwr-datasets is not installed")


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ("IidPartitioner", {}),
        ("IidPartitioner()", {}),
        (
            "ShardPartitioner(num_shards_per_partition=2, shuffle=False)",
            {"num_shards_per_partition": 2, "shuffle": False},
        ),
        ("SizePartitioner(partition_sizes=[3, 4])", {"partition_sizes": [3, 4]}),
    ],
)
def test_arguments_are_literals(call: str, arguments: dict[str, Any]) -> None:
    assert parse_call(call, call) == (call.partition("(")[0], arguments)


@pytest.mark.parametrize("call", ["", "A(", "A(3)", "A(x=open('f'))", "A(**{})", "A()+1", "a.B()", "A(x=1)(y=2)"])
def test_other_syntax_is_rejected_in_one_line(call: str) -> None:
    with pytest.raises(BadInput, match=r"write flwr:NAME\(key=value,...\)") as caught:
        check_partition(f"flwr:{call}")
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(INSTALLED, reason="the package flwr-datasets is installed")
def test_missing_package_is_named() -> None:
    with pytest.raises(BadInput, match="pip install flwr-datasets"):
        split("flwr:IidPartitioner", Y_TRAIN, Y_TEST, 4, 0)


@needs_library
@pytest.mark.parametrize(
    "call",
    [
        "IidPartitioner",
        "LinearPartitioner",
        "DirichletPartitioner(alpha=0.5)",
        "ShardPartitioner(num_shards_per_partition=2)",
    ],
)
def test_training_examples_are_partitioned_and_test_examples_follow(call: str) -> None:
    partition = split(f"flwr:{call}", Y_TRAIN, Y_TEST, 4, 7)
    assert np.array_equal(np.sort(np.concatenate(partition.train)), np.arange(1000))
    assert np.array_equal(np.sort(np.concatenate(partition.test)), np.arange(300))
    for train, test in zip(partition.train, partition.test, strict=True):
        held, given = (np.bincount(y[own], minlength=10) for y, own in ((Y_TRAIN, train), (Y_TEST, test)))
        assert (np.abs(given - held * 0.3) < 1).all()
    assert partition.digest == split(f"flwr:{call}", Y_TRAIN, Y_TEST, 4, 7).digest
    assert partition.digest != split(f"flwr:{call}", Y_TRAIN, Y_TEST, 4, 8).digest


@needs_library
@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("IdPartitioner", "unknown partitioner; did you mean 'IidPartitioner'"),
        ("VerticalEvenPartitioner", "unknown partitioner"),
        ("DirichletPartitioner", "DirichletPartitioner raised an error: .*alpha"),
        ("SizePartitioner(partition_sizes=[1, 1, 1, 1])", "no client has a training example of class"),
        ("SizePartitioner(partition_sizes=[10, 10])", "made 2 shards, .* but there are 4 clients"),
    ],
)
def test_errors_of_partitioners_are_reported(call: str, message: str) -> None:
    with pytest.raises(BadInput, match=message) as caught:
        split(f"flwr:{call}", Y_TRAIN, Y_TEST, 4, 7)
    assert "\n" not in str(caught.value)
