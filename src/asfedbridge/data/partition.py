"""Which client holds which examples.

- ``iid``: equal random shards.
- ``dirichlet``: label skew; each class is shared out by its own Dirichlet(alpha) draw.
- ``classes:K``: label skew; every client has K classes (McMahan et al., AISTATS 2017).
- ``quantity:BETA``: shards of unequal sizes, drawn from Dirichlet(BETA), with the same mixture of labels.
- ``assigned``: as the data set says.
- ``flwr:NAME(key=value,...)``: a partitioner of the package flwr-datasets.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from asfedbridge.core.errors import BadInput, nearest
from asfedbridge.data.apportion import (
    Labels,
    apportion,
    cut,
    deal,
    draw_until,
    follow_mixtures,
    group_by_class,
)

FORMS = ("iid", "dirichlet", "classes:K", "quantity:BETA", "assigned", "flwr:NAME(key=value,...)")
DRAWS = 1000  # of shares, until every client has enough examples
Assigned = tuple[Labels, Labels | None]  # the client of each training and each test example


@dataclass(frozen=True, eq=False)
class Partition:
    train: tuple[np.ndarray, ...]  # sorted int64 indices per client
    test: tuple[np.ndarray, ...]
    digest: str  # sha256 of all indices in client order, sizes included


def check_partition(text: str) -> tuple[str, str]:
    """Kind and argument of what stands behind partition=; BadInput, naming the nearest, if it is none of ``FORMS``."""
    kind, colon, argument = text.partition(":")
    if kind not in {form.partition(":")[0] for form in FORMS}:
        raise BadInput(f"partition={text}: unknown choice{nearest(text, FORMS)}")
    if (kind in ("iid", "dirichlet", "assigned")) == bool(colon):
        form = next(form for form in FORMS if form.startswith(kind))
        raise BadInput(f"partition={text}: write {form}")
    if kind == "classes" and not (argument.isdecimal() and int(argument) > 0):
        raise BadInput(f"partition={text}: write classes:K with a whole number K above 0, e.g. classes:2")
    if kind == "quantity":
        try:
            beta = float(argument)
        except ValueError:
            beta = math.nan
        if not 1e-3 <= beta <= 1e6:
            raise BadInput(f"partition={text}: write quantity:BETA with a number from 0.001 to 1e6, e.g. quantity:0.5")
    if kind == "flwr":
        from asfedbridge.data.flwr_partitioner import parse_call

        parse_call(text, argument)
    return kind, argument


def describe_partition(text: str, alpha: float, dirichlet: str = "Dirichlet") -> str:
    """A partition in a few characters, for tables."""
    return f"{dirichlet}({alpha:g})" if text == "dirichlet" else text


def split(
    kind: str,
    y_train: Labels,
    y_test: Labels,
    clients: int,
    seed: int,
    alpha: float = 0.5,
    minimum: int = 10,
    assigned: Assigned | None = None,
) -> Partition:
    """The partition of that kind.

    `alpha` matters to "dirichlet" only, `minimum` to it and "quantity"; `assigned` is the data set's own.
    """
    name, argument = check_partition(kind)
    if name == "iid":
        return iid(y_train, y_test, clients, seed)
    if name == "dirichlet":
        return dirichlet(y_train, y_test, clients, alpha, seed, minimum)
    if name == "classes":
        return by_classes(y_train, y_test, clients, int(argument), seed)
    if name == "quantity":
        return by_quantity(y_train, y_test, clients, float(argument), seed, minimum)
    if name == "assigned":
        return by_assignment(y_train, y_test, clients, assigned, seed)
    from asfedbridge.data.flwr_partitioner import run_partitioner

    shards = run_partitioner(kind, argument, np.asarray(y_train), clients, seed)
    return follow(f"partition={kind}", shards, y_train, y_test, seed)


def pool(partition: Partition, clients: int) -> Partition:
    """Everything that was split, for each of ``clients``."""
    train, test = np.concatenate(partition.train), np.concatenate(partition.test)
    return _seal([train] * clients, [test] * clients)


def hold_out(partition: Partition, share: float, seed: int) -> Partition:
    """Shards that are tested on a random ``share`` of their own training examples, which they no longer train on.

    ``test`` then counts training examples, not test examples; a client keeps at least one of either.
    """
    rng = _generator(seed)
    train, test = [], []
    for own in partition.train:
        held, kept = np.split(rng.permutation(own), [min(len(own) - 1, max(1, round(share * len(own))))])
        train.append(kept)
        test.append(held)
    return _seal(train, test)


def probe(partition: Partition, labels: Labels, most: int, seed: int) -> Partition:
    """One shard that trains on nothing and tests on at most ``most`` of everybody's test examples, in their order.

    Balanced over the classes in ``labels`` as far as there are examples. They do not depend on who holds which.
    """
    tests = np.unique(np.concatenate(partition.test))
    drawn = _generator(seed).permutation(len(tests))
    turn = np.empty(len(tests), np.int64)  # the first example of every class, then the second, ...
    for label in np.unique(labels[tests]):
        own = labels[tests[drawn]] == label
        turn[own] = np.arange(own.sum())
    chosen = drawn[np.argsort(turn, kind="stable")[:most]]
    return _seal([np.empty(0, np.int64)], [tests[chosen]])


def iid(y_train: Labels, y_test: Labels, clients: int, seed: int) -> Partition:
    """Independent permutations of the training and of the test set, each cut into shards whose sizes differ by at most
    one."""
    _require(len(y_train), len(y_test), clients, 1)
    rng = _generator(seed)
    train = np.array_split(rng.permutation(len(y_train)), clients)
    test = np.array_split(rng.permutation(len(y_test)), clients)
    return _seal(train, test)


def dirichlet(
    y_train: Labels,
    y_test: Labels,
    clients: int,
    alpha: float,
    seed: int,
    minimum: int = 10,
    draws: int = DRAWS,
) -> Partition:
    """Each class is shared out by its own Dirichlet(alpha) draw; test sets follow the training mixtures.

    Shares are redrawn until every client has more than `minimum` training examples and at least one test example: an
    accuracy needs an example. The test examples of a class are dealt out in proportion to the training examples of
    that class, by largest remainder, ties to the lower client.
    """
    if not (math.isfinite(alpha) and alpha > 0):
        raise BadInput(f"alpha={alpha}: give a finite number above 0 (0.1 is strong label skew, 100 nearly none)")
    _require(len(y_train), len(y_test), clients, minimum + 1)
    members, tests = group_by_class(y_train, y_test)
    rng = _generator(seed)

    def draw() -> tuple[np.ndarray, np.ndarray] | None:
        shares = rng.dirichlet(np.full(clients, float(alpha)), size=len(members))
        if not np.isfinite(shares).all():  # every gamma underflowed to 0; as an integer NaN is anything
            return None
        held = np.stack([cut(share, len(own)) for share, own in zip(shares, members, strict=True)])
        return held, follow_mixtures(held, tests)

    held = draw_until(draw, minimum, draws)
    if held is None:
        raise BadInput(
            f"alpha={alpha} with clients={clients}: no draw in {draws} gave every client more than {minimum} of the "
            f"{len(y_train)} training and one of the {len(y_test)} test examples: raise alpha or take fewer clients"
        )
    return _seal(deal(rng, members, held[0]), deal(rng, tests, held[1]))


def by_classes(y_train: Labels, y_test: Labels, clients: int, count: int, seed: int) -> Partition:
    """Every client has examples of `count` classes, drawn so that each class has as many clients as any other (or one
    more). The clients of a class share its training examples equally; test sets follow the training mixtures."""
    _require(len(y_train), len(y_test), clients, 1)
    members, tests = group_by_class(y_train, y_test)
    where = f"partition=classes:{count}"
    if count > len(members):
        raise BadInput(f"{where}: the data set has {len(members)} classes: give at most that")
    if clients * count < len(members):
        least = math.ceil(len(members) / clients)
        raise BadInput(
            f"{where}: {clients} clients cannot hold all {len(members)} classes: give at least classes:{least} or take "
            f"more clients"
        )
    rng = _generator(seed)
    holders = np.zeros((len(members), clients), np.int64)
    for client in rng.permutation(clients):
        # The classes with the fewest clients so far, in random order: counts never differ by more than one.
        order = rng.permutation(len(members))
        holders[order[np.argsort(holders.sum(1)[order], kind="stable")[:count]], client] = 1
    for label, (row, own) in enumerate(zip(holders, members, strict=True)):
        if row.sum() > len(own):
            raise BadInput(
                f"{where}: {row.sum()} clients share class {label}, which has {len(own)} training examples: give fewer "
                f"classes or take fewer clients"
            )
    held = np.stack([apportion(row, len(own)) for row, own in zip(holders, members, strict=True)])
    held_test = follow_mixtures(held, tests)
    _require_tests(where, held_test)
    return _seal(deal(rng, members, held), deal(rng, tests, held_test))


def by_quantity(
    y_train: Labels, y_test: Labels, clients: int, beta: float, seed: int, minimum: int = 10, draws: int = DRAWS
) -> Partition:
    """Shards whose sizes follow one Dirichlet(beta) draw and which have the mixture of labels of the whole set.

    Of each class a client gets its share of the training and of the test examples, rounded up or down at random. The
    draw is repeated until every client has more than `minimum` training examples and at least one test example.
    """
    _require(len(y_train), len(y_test), clients, minimum + 1)
    members, tests = group_by_class(y_train, y_test)
    rng = _generator(seed)

    def draw() -> tuple[np.ndarray, np.ndarray] | None:
        share = rng.dirichlet(np.full(clients, beta))
        if not np.isfinite(share).all():
            return None
        held, held_test = (np.stack([cut(share, len(own), rng.random()) for own in half]) for half in (members, tests))
        return held, held_test

    held = draw_until(draw, minimum, draws)
    if held is None:
        raise BadInput(
            f"partition=quantity:{beta:g} with clients={clients}: no draw in {draws} gave every client more than "
            f"{minimum} of the {len(y_train)} training and one of the {len(y_test)} test examples: raise BETA or take "
            f"fewer clients"
        )
    return _seal(deal(rng, members, held[0]), deal(rng, tests, held[1]))


def by_assignment(y_train: Labels, y_test: Labels, clients: int, assigned: Assigned | None, seed: int = 0) -> Partition:
    """As the data set says which client has which example; without clients of the test examples, these follow the
    training mixtures."""
    where = "partition=assigned"
    if assigned is None:
        raise BadInput(
            f"{where}: the data set assigns no clients: add client_train (and client_test), or choose another"
        )
    shards = []
    for key, ids, count in (
        ("client_train", assigned[0], len(y_train)),
        ("client_test", assigned[1], len(y_test)),
    ):
        if ids is None:
            continue
        own = np.asarray(ids)
        if len(own) != count:
            raise BadInput(f"{where}: {key} has {len(own)} entries for {count} examples: give one for each")
        found = np.unique(own)
        if found[-1] >= clients or found[0] < 0:
            raise BadInput(f"{where}: {key} names client {found[-1]}: the fleet has clients 0 to {clients - 1}")
        if len(found) < clients:
            lacking = np.setdiff1d(np.arange(clients), found)[0]
            raise BadInput(f"{where}: {key} gives client {lacking} of {clients} no example: change it or the fleet")
        shards.append([np.flatnonzero(own == client) for client in range(clients)])
    return _seal(*shards) if len(shards) == 2 else follow(where, shards[0], y_train, y_test, seed)


def follow(where: str, train: Sequence[np.ndarray], y_train: Labels, y_test: Labels, seed: int) -> Partition:
    """Given training shards; the test examples of a class are dealt out in proportion to its training examples."""
    members, tests = group_by_class(y_train, y_test)
    labels = np.asarray(y_train)
    classes = [labels[own[0]] for own in members]
    held = np.array([[np.sum(labels[shard] == label) for shard in train] for label in classes])
    for label, row in zip(classes, held, strict=True):
        if row.sum() == 0:
            raise BadInput(f"{where}: no client has a training example of class {label}: change its arguments")
    held_test = follow_mixtures(held, tests)
    _require_tests(where, held_test)
    return _seal(train, deal(_generator(seed), tests, held_test))


def _generator(seed: int) -> np.random.Generator:
    if seed < 0:
        raise BadInput(f"seed={seed}: give a whole number, 0 or above")
    return np.random.Generator(np.random.PCG64(seed))


def _require(train: int, test: int, clients: int, each: int) -> None:
    if clients < 1:
        raise BadInput(f"clients={clients}: give at least 1")
    if train < clients * each:
        raise BadInput(f"clients={clients}: {train} training examples cannot give each {each}: take fewer clients")
    if test < clients:
        raise BadInput(f"clients={clients}: {test} test examples cannot give each 1: take fewer clients")


def _require_tests(where: str, held: np.ndarray) -> None:
    without = np.flatnonzero(held.sum(0) == 0)
    if len(without):
        raise BadInput(
            f"{where}: client {without[0]} would have no test example: take fewer clients or more test images"
        )


def _seal(train: Sequence[np.ndarray], test: Sequence[np.ndarray]) -> Partition:
    digest = hashlib.sha256()
    halves = []
    for shards in (train, test):
        # Sorted, so that equal shards have equal digests.
        halves.append(tuple(np.sort(shard).astype(np.int64) for shard in shards))
        for shard in halves[-1]:
            digest.update(len(shard).to_bytes(8, "little"))
            digest.update(shard.astype("<i8").tobytes())
    return Partition(halves[0], halves[1], digest.hexdigest())
