"""The values of ``partition=``: selection, checks and descriptions."""

import numpy as np
import pytest

from asfedbridge.core.errors import BadInput
from asfedbridge.data.partition_names import check_partition, describe_partition, split
from asfedbridge.data.partitioners import dirichlet, iid

Y_TRAIN = np.random.default_rng(1).permutation(np.repeat(np.arange(10), 100))
Y_TEST = np.random.default_rng(2).permutation(np.repeat(np.arange(10), 30))


def test_split_selects_the_kind() -> None:
    assert split("iid", Y_TRAIN, Y_TEST, 3, 5).digest == iid(Y_TRAIN, Y_TEST, 3, 5).digest
    chosen = split("dirichlet", Y_TRAIN, Y_TEST, 3, 5, alpha=0.2)
    assert chosen.digest == dirichlet(Y_TRAIN, Y_TEST, 3, 0.2, 5).digest
    with pytest.raises(BadInput, match=r"partition=shards: unknown choice.* dirichlet, .*, iid, quantity:BETA"):
        split("shards", Y_TRAIN, Y_TEST, 3, 5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("iid:3", "write iid"),
        ("classes", "write classes:K"),
        ("classes:", "integer K above 0"),
        ("classes:1.5", "integer K above 0"),
        ("quantity:x", "write quantity:BETA with a number"),
        ("quantity:0", "write quantity:BETA with a number"),
        ("quantity:nan", "write quantity:BETA with a number"),
        ("assign", "did you mean 'assigned'"),
        ("", "unknown choice"),
    ],
)
def test_invalid_partitions_are_rejected(text: str, message: str) -> None:
    with pytest.raises(BadInput, match=message) as caught:
        check_partition(text)
    assert str(caught.value).startswith(f"partition={text}: ")


def test_describe_partition() -> None:
    assert describe_partition("dirichlet", 0.1) == "Dirichlet(0.1)"
    assert describe_partition("classes:2", 0.1) == "classes:2"
