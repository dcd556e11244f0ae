"""Distributes examples to clients: one function for each kind of partition."""

import math
from collections.abc import Sequence

import numpy as np

from asfedbridge.core.errors import BadInput
from asfedbridge.data.apportion import Labels, apportion, cut, deal, draw_until, follow_mixtures, group_by_class
from asfedbridge.data.partition import Partition, generator, seal

MAX_DRAWS = 1000  # attempts to draw shares that give every client enough examples
Assigned = tuple[Labels, Labels | None]  # the client of each training and each test example


def iid(y_train: Labels, y_test: Labels, clients: int, seed: int) -> Partition:
    """Shuffles the training and the test set independently and splits each into shards whose sizes differ by at most
    one."""
    _require(len(y_train), len(y_test), clients, 1)
    rng = generator(seed)
    train = np.array_split(rng.permutation(len(y_train)), clients)
    test = np.array_split(rng.permutation(len(y_test)), clients)
    return seal(train, test)


def dirichlet(
    y_train: Labels,
    y_test: Labels,
    clients: int,
    alpha: float,
    seed: int,
    minimum: int = 10,
    draws: int = MAX_DRAWS,
) -> Partition:
    """Distributes each class by its own Dirichlet(alpha) draw. Test shards have the training shards' label
    distribution.

    Shares are redrawn until every client has more than `minimum` training examples and at least one test example, which
    an accuracy needs. The test examples of a class are distributed in proportion to its training examples by largest
    remainder; ties go to the lower client id.
    """
    if not (math.isfinite(alpha) and alpha > 0):
        raise BadInput(f"alpha={alpha}: give a finite number above 0 (0.1 is strong label skew, 100 nearly none)")
    _require(len(y_train), len(y_test), clients, minimum + 1)
    members, tests = group_by_class(y_train, y_test)
    rng = generator(seed)

    def draw() -> tuple[np.ndarray, np.ndarray] | None:
        shares = rng.dirichlet(np.full(clients, float(alpha)), size=len(members))
        if not np.isfinite(shares).all():  # all gamma samples underflowed to 0; NaN has no defined integer value
            return None
        held = np.stack([cut(share, len(own)) for share, own in zip(shares, members, strict=True)])
        return held, follow_mixtures(held, tests)

    held = draw_until(draw, minimum, draws)
    if held is None:
        raise BadInput(
            f"alpha={alpha} with clients={clients}: no draw in {draws} gave every client more than {minimum} of the "
            f"{len(y_train)} training and one of the {len(y_test)} test examples: raise alpha or use fewer clients"
        )
    return seal(deal(rng, members, held[0]), deal(rng, tests, held[1]))


def by_classes(y_train: Labels, y_test: Labels, clients: int, count: int, seed: int) -> Partition:
    """Gives every client examples of `count` random classes. The numbers of clients per class differ by at most one.
    The clients of a class share its training examples equally; test shards have the training shards' label
    distribution."""
    _require(len(y_train), len(y_test), clients, 1)
    members, tests = group_by_class(y_train, y_test)
    where = f"partition=classes:{count}"
    if count > len(members):
        raise BadInput(f"{where}: the data set has {len(members)} classes: give at most that many")
    if clients * count < len(members):
        least = math.ceil(len(members) / clients)
        raise BadInput(
            f"{where}: {clients} clients cannot hold all {len(members)} classes: give at least classes:{least} or use "
            f"more clients"
        )
    rng = generator(seed)
    holders = np.zeros((len(members), clients), np.int64)
    for client in rng.permutation(clients):
        # Takes the classes with the fewest clients so far, ties in random order, so counts differ by at most one.
        order = rng.permutation(len(members))
        holders[order[np.argsort(holders.sum(1)[order], kind="stable")[:count]], client] = 1
    for label, (row, own) in enumerate(zip(holders, members, strict=True)):
        if row.sum() > len(own):
            raise BadInput(
                f"{where}: {row.sum()} clients share class {label}, which has {len(own)} training examples: give fewer "
                f"classes or use fewer clients"
            )
    held = np.stack([apportion(row, len(own)) for row, own in zip(holders, members, strict=True)])
    held_test = follow_mixtures(held, tests)
    _require_tests(where, held_test)
    return seal(deal(rng, members, held), deal(rng, tests, held_test))


def by_quantity(
    y_train: Labels, y_test: Labels, clients: int, beta: float, seed: int, minimum: int = 10, draws: int = MAX_DRAWS
) -> Partition:
    """Shards whose sizes follow one Dirichlet(beta) draw and which have the label distribution of the whole set.

    A client gets its share of the training and test examples of each class, rounded up or down at random. The draw is
    repeated until every client has more than `minimum` training examples and at least one test example.
    """
    _require(len(y_train), len(y_test), clients, minimum + 1)
    members, tests = group_by_class(y_train, y_test)
    rng = generator(seed)

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
            f"{minimum} of the {len(y_train)} training and one of the {len(y_test)} test examples: raise BETA or use "
            f"fewer clients"
        )
    return seal(deal(rng, members, held[0]), deal(rng, tests, held[1]))


def by_assignment(y_train: Labels, y_test: Labels, clients: int, assigned: Assigned | None, seed: int = 0) -> Partition:
    """The assignment in the data set. If it does not assign test examples, these follow the training shards' label
    distribution."""
    where = "partition=assigned"
    if assigned is None:
        raise BadInput(
            f"{where}: the data set assigns no clients: add client_train (and client_test), or use another partition"
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
            raise BadInput(f"{where}: {key} has no example for client {lacking} of {clients}: change it or the fleet")
        shards.append([np.flatnonzero(own == client) for client in range(clients)])
    return seal(*shards) if len(shards) == 2 else follow(where, shards[0], y_train, y_test, seed)


def follow(where: str, train: Sequence[np.ndarray], y_train: Labels, y_test: Labels, seed: int) -> Partition:
    """Completes training shards: distributes the test examples of a class in proportion to its training examples."""
    members, tests = group_by_class(y_train, y_test)
    labels = np.asarray(y_train)
    classes = [labels[own[0]] for own in members]
    held = np.array([[np.sum(labels[shard] == label) for shard in train] for label in classes])
    for label, row in zip(classes, held, strict=True):
        if row.sum() == 0:
            raise BadInput(f"{where}: no client has a training example of class {label}: change its arguments")
    held_test = follow_mixtures(held, tests)
    _require_tests(where, held_test)
    return seal(train, deal(generator(seed), tests, held_test))


def _require(train: int, test: int, clients: int, each: int) -> None:
    if clients < 1:
        raise BadInput(f"clients={clients}: give at least 1")
    if train < clients * each:
        raise BadInput(f"clients={clients}: {train} training examples are fewer than {each} each: use fewer clients")
    if test < clients:
        raise BadInput(f"clients={clients}: {test} test examples are fewer than 1 each: use fewer clients")


def _require_tests(where: str, held: np.ndarray) -> None:
    without = np.flatnonzero(held.sum(0) == 0)
    if len(without):
        raise BadInput(
            f"{where}: client {without[0]} would have no test example: use fewer clients or more test images"
        )
