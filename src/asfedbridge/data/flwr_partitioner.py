"""Partitioners of the package flwr-datasets: ``partition=flwr:NAME(key=value,...)``.

They partition the training examples. The number of clients, the label column and the seed are passed to partitioners
that accept them. The package is imported only when such a partition is made.
"""

import ast
import importlib
import inspect
from typing import Any

import numpy as np

from asfedbridge.core.errors import BadInput, brief, nearest

FORM = "flwr:NAME(key=value,...), e.g. flwr:ShardPartitioner(num_shards_per_partition=2)"
MAX_CHARACTERS = 2000
LABEL, INDEX = "label", "index"  # columns of the data set passed to a partitioner


def parse_call(text: str, call: str) -> tuple[str, dict[str, Any]]:
    """Parses the name and the arguments of a partitioner. Values are Python literals."""
    try:
        if len(call) > MAX_CHARACTERS:
            raise ValueError(f"more than {MAX_CHARACTERS} characters")
        body = ast.parse(call.strip(), mode="eval").body
        function, entries = (body.func, body.keywords) if isinstance(body, ast.Call) else (body, [])
        if not isinstance(function, ast.Name):
            raise ValueError("the name of a partitioner is missing")
        if (isinstance(body, ast.Call) and body.args) or any(entry.arg is None for entry in entries):
            raise ValueError("an argument has no key")
        return function.id, {str(entry.arg): ast.literal_eval(entry.value) for entry in entries}
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise BadInput(f"partition={text}: {brief(error)}: write {FORM}") from None


def run_partitioner(text: str, call: str, y_train: np.ndarray, clients: int, seed: int) -> list[np.ndarray]:
    """Training examples of each client. They are shuffled first, because some partitioners split them in order."""
    name, arguments = parse_call(text, call)
    try:
        library: Any = importlib.import_module("flwr_datasets.partitioner")
        datasets: Any = importlib.import_module("datasets")
    except ImportError:
        raise BadInput(f"partition={text}: needs the package flwr-datasets: pip install flwr-datasets") from None
    known = [n for n in library.__all__ if n != "Partitioner" and not n.startswith("Vertical")]
    if name not in known:
        raise BadInput(f"partition={text}: unknown partitioner{nearest(name, known)}")
    cls = getattr(library, name)
    given = {"num_partitions": clients, "partition_by": LABEL, "seed": seed % 2**32}
    taken = inspect.signature(cls).parameters
    order = np.random.default_rng(seed).permutation(len(y_train))
    rows = datasets.Dataset.from_dict({LABEL: y_train[order].tolist(), INDEX: order.tolist()})
    try:
        partitioner = cls(**({key: value for key, value in given.items() if key in taken} | arguments))
        partitioner.dataset = rows
        count = partitioner.num_partitions
        shards = [np.array(partitioner.load_partition(client)[INDEX], np.int64) for client in range(count)]
    except Exception as error:  # the library's own checks, of many types
        raise BadInput(f"partition={text}: {name} raised an error: {brief(error)}") from error
    if count != clients or not all(map(len, shards)):
        found = f"{count} shards, {sum(map(bool, map(len, shards)))} of them with examples"
        raise BadInput(f"partition={text}: {name} made {found}, but there are {clients} clients: change its arguments")
    return shards
