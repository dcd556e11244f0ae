"""The ServerApp and the ClientApp of a specification.

A node's data are its client's shard of the run's data set, for trials; or, with data=nodes, a data set of its own
(``data`` in its node config), which the server never sees.
"""

import dataclasses
import hashlib
import json
import math
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from flwr.app import Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from asfedbridge.core import BadInput, ClientInfo, Shard, Task, TooFewClients, load_all, parse_json, seed
from asfedbridge.data import Dataset, Framing, data_root, hold_out, iid, load, make_shards, take_per_class
from asfedbridge.data import Shard as Images
from asfedbridge.deploy import node as nodes
from asfedbridge.deploy.app_folder import (
    CONFIG,
    MODELS,
    OUTCOME,
    PROCESS,
    PROGRESS,
    STATES,
    check_network,
)
from asfedbridge.deploy.engine import FlowerEngine
from asfedbridge.deploy.node import Site, make_client_app
from asfedbridge.deploy.node_registry import Roster
from asfedbridge.deploy.polling import quicken
from asfedbridge.engines import (
    Event,
    Tolerance,
    count_at_work,
    is_there,
    prepare_process,
    read_file,
    write_atomic,
)
from asfedbridge.models import check_backbone
from asfedbridge.runs import (
    ON_NODES,
    Callback,
    CallbackList,
    RunFolder,
    Setting,
    Spec,
    Summary,
    check_from_round,
    disk_faults,
    from_table,
    load_library,
    make_callback,
    make_task,
    make_writer,
    parse_fleet,
    pick_device,
    play,
    prepare,
    quickstart,
    read_summary,
    read_toml,
)

MAX_NAMED = 8  # clients named in a line about missing ones
REFUSED = (
    "a node that ends at once with 401 has an unregistered key, or its clock differs from the SuperLink's "
    "(run `asfedbridge flower check` on the node)"
)
NAME = "federation.json"  # in the run folder: the run's name on the nodes
KEEP_WARM = 600.0  # default of the node config `keep-warm`
HANDOVER = 30.0  # seconds in which the server of a stopped run releases the run folder


class NodeData(NamedTuple):
    """A client's part of a node's data set."""

    task: Task
    info: ClientInfo
    shard: Shard
    identity: dict[str, str]
    classes: tuple[str, ...]


def make_apps(file: Path, observe: Callable[..., Callback]) -> tuple[ServerApp, ClientApp]:
    """Flower's ServerApp and ClientApp for the specification in ``file``."""
    server = ServerApp()

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        quicken()
        config = CONFIG | dict(context.run_config)
        place = Path(config["report-to"]) if config["report-to"] else None
        if place:
            write_atomic(place / PROCESS, str(os.getpid()).encode())
        try:
            stream = (place / PROGRESS).open("a", encoding="utf-8") if place else None
            spec = read_specification(file, config)
            added = [make_callback(text) for text in str(config["callbacks"]).split(";") if text]
            serve_run(spec, grid, config, [observe(stream), *added])
        except Exception as error:
            if place:
                told = {"kind": type(error).__name__, "text": str(error)}
                write_atomic(place / OUTCOME, json.dumps(told).encode())
            raise
        if place:
            write_atomic(place / OUTCOME, b"{}")

    def open_site(context: Context) -> Site:
        config = CONFIG | dict(context.run_config)
        node = dict(context.node_config)

        def make() -> Site:
            return make_site(read_specification(file, config), node, config)

        key = json.dumps([context.run_id, str(file), config, node], sort_keys=True)
        return nodes.MEMORY.open(key, make) if nodes.MEMORY else make()

    return server, make_client_app(open_site)


def plugin_files(file: Path, config: Mapping[str, Any]) -> list[str]:
    """Python files that the run imports: those in the app and those named in its configuration."""
    in_app = sorted(map(str, (file.parent / MODELS).glob("*.py")))
    return [*in_app, *filter(None, str(config["imports"]).split(":"))]


def read_specification(file: Path, config: Mapping[str, Any]) -> Spec:
    load_all(plugin_files(file, config))
    return from_table(read_toml(file), quickstart())


def serve_run(spec: Spec, grid: Grid, config: Mapping[str, Any], callbacks: Sequence[Callback] = ()) -> Summary:
    """Run the server's side, from the last checkpoint if there is one; returns the summary."""
    out = Path(config["out"]).absolute()
    with disk_faults(out):
        return _serve_run(spec, out, grid, config, callbacks)


def _serve_run(spec: Spec, out: Path, grid: Grid, config: Mapping[str, Any], callbacks: Sequence[Callback]) -> Summary:
    check_network(spec)
    if spec.data == ON_NODES and spec.method.pools_data:
        raise BadInput(
            f"method={spec.method.name} with data=nodes: this method needs all data in one place; use another method"
        )
    if spec.method.mechanism:
        load_library()  # a missing package must show now, not after training
    prepare_process(spec.threads)
    setting = None if spec.data == ON_NODES else prepare(spec, data_root(config["data-root"] or None))
    from_round = int(config["from-round"]) or None
    if from_round is not None:
        check_from_round(from_round, bool(config["resume"]))
    folder = RunFolder(out, spec, bool(config["resume"]), HANDOVER)
    finished = read_summary(folder.path)
    if finished is not None and from_round is None:
        return finished
    watching = CallbackList(callbacks)
    tolerance = Tolerance(watching.event, int(config["min-clients"]), float(config["patience"]))
    infos = setting.clients if setting else parse_fleet(spec.fleet, spec.T)
    identity = setting.identity(spec) if setting else {"specification": spec.digest()}
    task = setting.task if setting else None
    shape = (task.classes, task.channels, task.image_size, task.frames) if task else None
    roster = Roster(grid, infos, identity, shape)
    watching.wait(f"waiting for {len(infos)} clients")

    early: list[Event] = []

    def remind(missing: list[int]) -> None:
        named = ", ".join(map(str, missing[:MAX_NAMED])) + (", ..." if len(missing) > MAX_NAMED else "")
        hint = f"; rejected: {early[-1].reason}" if early else "" if config["report-to"] else f"; {REFUSED}"
        watching.wait(f"waiting for {len(missing)} clients: {named}{hint}")

    roster.gather(float(config["gathering"]), early.append, remind=remind)
    need = tolerance.need(count_at_work(len(infos), spec.participation))
    if setting is None and len(roster.seats) < need:  # nodes may still be busy for a server that was killed
        roster.gather(tolerance.patience, early.append, enough=need, remind=remind)
    roster.agree(early.append)
    setting = setting or setting_of_nodes(spec, roster)
    run, timeout = name_run(folder.path), float(config["round-timeout"])
    engine = FlowerEngine(grid, roster, spec.method, setting.task, tolerance, run, timeout)
    return play(spec, setting, folder, watching, engine, tolerance=tolerance, early=early, from_round=from_round)


def name_run(folder: Path) -> str:
    """The run's name on the nodes: the same when it is resumed, new for every new run."""
    path = folder / NAME
    if not is_there(path):
        write_atomic(path, json.dumps({"run": secrets.token_hex(8)}).encode())
    try:
        return str(parse_json(read_file(path))["run"])
    except (ValueError, KeyError, TypeError):
        raise BadInput(f"{path}: is damaged; restore it, or start again with another out") from None


def setting_of_nodes(spec: Spec, roster: Roster) -> Setting:
    """The task, with the shape of the data that the first node reported."""
    if roster.shape is None:
        raise TooFewClients("no node with usable data connected; start the nodes, or raise gathering or patience")
    infos = list(roster.infos.values())
    task = make_task(spec, *roster.shape, infos)
    check(spec, task, infos)
    empty = torch.zeros(0, task.channels, 1, 1, dtype=torch.uint8), torch.zeros(0, dtype=torch.int64)
    probe = Images(*empty, *empty, [0.0] * task.channels, [1.0] * task.channels, "none")
    return Setting(task, infos, [], ON_NODES, ON_NODES, probe, tuple(spec.method.notes(task)))


def check(spec: Spec, task: Task, infos: list[ClientInfo]) -> None:
    for info in infos:
        check_backbone(task, info)
    spec.method.check(task, infos)


def make_site(spec: Spec, node: Mapping[str, Any], config: Mapping[str, Any]) -> Site:
    """A node from its operator's settings (node config): client-id, kind, data, data-root, state-dir, device,
    allow-rollback, keep-warm."""
    task, info, shard, identity, classes = read_data(spec, node)
    if node.get("kind", info.kind) != info.kind:
        raise BadInput(
            f"node config: kind={node['kind']} but client {info.id} of this run's fleet is of kind {info.kind}"
        )
    # Flower numbers the nodes only in a simulation, where all are on the server's machine.
    usual = "states" if "client-id" in node else f"{config['out']}/{STATES}"
    states = Path(str(node.get("state-dir", usual))).absolute()
    rollback = node.get("allow-rollback", False)
    if type(rollback) is not bool:
        raise BadInput(f"node config: allow-rollback={rollback!r} must be true or false")
    warm = node.get("keep-warm", KEEP_WARM)
    if type(warm) not in (int, float) or not 0 <= warm < math.inf:
        raise BadInput(f"node config: keep-warm={warm!r} must be a number of seconds; 0 starts a process for each turn")
    prepare_process(spec.threads)
    return Site(
        spec.method,
        task,
        info,
        shard,
        states,
        identity,
        pick_device(str(node.get("device", spec.device)), spec.precision),
        rollback,
        (spec.keep_checkpoints - 1) * spec.checkpoint_every,
        partial(make_writer, spec, classes),
        float(warm),
    )


def read_data(spec: Spec, node: Mapping[str, Any]) -> NodeData:
    """The data of the node's client: its shard of the run's data set, or a data set of its own."""
    client = node.get("client-id", node.get("partition-id"))
    if type(client) is not int:
        raise BadInput(
            f"node config: client-id={client!r} must be the number of a client in the fleet, for example client-id=0"
        )
    root = data_root(str(node["data-root"]) if "data-root" in node else None)
    if spec.data == ON_NODES:
        return own_data(spec, client, node, root)
    setting = prepare(spec, root)
    known = {c.id: (c, s) for c, s in zip(setting.clients, setting.shards, strict=True)}
    if client not in known:
        raise BadInput(f"node config: client-id={client} is not in this run, which has {sorted(known)}")
    info, shard = known[client]
    return NodeData(setting.task, info, shard, setting.identity(spec), setting.classes)


def own_data(spec: Spec, client: int, node: Mapping[str, Any], root: Path) -> NodeData:
    """The whole of the node's own data set is its client's shard."""
    fleet = parse_fleet(spec.fleet, spec.T)
    if not 0 <= client < len(fleet):
        raise BadInput(f"node config: client-id={client} is not in this run, which has 0 to {len(fleet) - 1}")
    if "data" not in node:
        raise BadInput('node config: data is missing; name the node\'s own data set, e.g. data="npz:/path/site.npz"')
    framing = Framing(spec.T, spec.frames_by)
    dataset = load(str(node["data"]), root, spec.image_size, spec.augment, spec.skip_damaged, framing)
    dataset = take_per_class(dataset, spec.train_per_class, spec.test_per_class)
    shard = whole(spec, dataset)
    task = make_task(spec, len(dataset.classes), dataset.channels, dataset.image_size, dataset.frames, fleet)
    check(spec, task, fleet)
    info = dataclasses.replace(fleet[client], train_size=shard.train_size, test_size=len(shard.y_test))
    classes = hashlib.sha256(json.dumps(dataset.classes).encode()).hexdigest()  # in the same order everywhere
    return NodeData(task, info, shard, {"specification": spec.digest(), "classes": classes}, dataset.classes)


def whole(spec: Spec, dataset: Dataset) -> Images:
    partition = iid(dataset.y_train.numpy(), dataset.y_test.numpy(), 1, seed(spec.seed, "partition"))
    if spec.holdout:
        partition = hold_out(partition, spec.holdout, seed(spec.seed, "holdout"))
        dataset = dataclasses.replace(dataset, x_test=dataset.x_train, y_test=dataset.y_train)
    (shard,) = make_shards(dataset, partition, spec.augment)
    return shard
