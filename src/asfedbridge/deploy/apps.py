"""The ServerApp and the ClientApp of a specification.

The data of a node are a shard of the run's data by the client's number, for trials; or, with data=nodes, a data set of
its own (``data`` in its node config). The server never sees the latter.
"""

import dataclasses
import hashlib
import json
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from flwr.app import Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from asfedbridge.core import BadInput, ClientInfo, Shard, Task, TooFewClients, load_all, seed
from asfedbridge.data import Dataset, Framing, data_root, hold_out, iid, load, make_shards, take_per_class
from asfedbridge.data import Shard as Images
from asfedbridge.deploy.app_folder import (
    CONFIG,
    MODELS,
    OUTCOME,
    PROCESS,
    PROGRESS,
    STATES,
    check_network,
)
from asfedbridge.deploy.data_cache import DataCache, Request
from asfedbridge.deploy.engine import FlowerEngine
from asfedbridge.deploy.node import Site, make_client_app
from asfedbridge.deploy.node_registry import Roster
from asfedbridge.deploy.polling import quicken
from asfedbridge.engines import Event, Tolerance, prepare_process, write_atomic
from asfedbridge.models import check_backbone
from asfedbridge.runs import (
    ON_NODES,
    Callback,
    CallbackList,
    RunFolder,
    Setting,
    Spec,
    Summary,
    from_table,
    load_library,
    make_callback,
    make_task,
    parse_fleet,
    pick_device,
    play,
    prepare,
    quickstart,
    read_summary,
    read_toml,
    restored,
)

NAME = "federation.json"  # in the run folder: what the run is called on the nodes


class NodeData(NamedTuple):
    """What a node reads from its data set for one client."""

    task: Task
    info: ClientInfo
    shard: Shard
    identity: dict[str, str]


CACHE: DataCache[NodeData] | None = None  # set in a node's task server and inherited by its turns


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
        data = None
        if CACHE and not plugin_files(file, config):  # code of one run must not stay in the task server
            data = CACHE.find({"run": context.run_id, "file": str(file), "config": config, "node": node})
        return make_site(read_specification(file, config), node, config, data)

    return server, make_client_app(open_site)


def start_cache() -> None:
    """In a node's task server: keep the data of the run between messages."""
    global CACHE
    CACHE = DataCache(read_requested)


def read_requested(request: Request) -> NodeData:
    spec = read_specification(Path(request["file"]), request["config"])
    return read_data(spec, request["node"])


def plugin_files(file: Path, config: Mapping[str, Any]) -> list[str]:
    """Python files that the run imports: those in the app, and those named in its configuration."""
    in_app = sorted(map(str, (file.parent / MODELS).glob("*.py")))
    return [*in_app, *filter(None, str(config["imports"]).split(":"))]


def read_specification(file: Path, config: Mapping[str, Any]) -> Spec:
    load_all(plugin_files(file, config))
    return from_table(restored(read_toml(file)), quickstart())


def serve_run(spec: Spec, grid: Grid, config: Mapping[str, Any], callbacks: Sequence[Callback] = ()) -> Summary:
    """The server's side of a run, from its last checkpoint if there is one; returns the summary."""
    out = Path(config["out"]).absolute()
    check_network(spec)
    if spec.data == ON_NODES and spec.method.pools_data:
        raise BadInput(f"method={spec.method.name} with data=nodes: it needs everybody's data in one place")
    if spec.method.mechanism:
        load_library()  # to miss it now, not after training
    prepare_process(spec.threads)
    setting = None if spec.data == ON_NODES else prepare(spec, data_root(config["data-root"] or None))
    folder = RunFolder(out, spec, bool(config["resume"]))
    finished = read_summary(folder.path)
    if finished is not None:
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
    roster.gather(float(config["gathering"]), early.append)
    if setting is None and roster.shape is None:  # nodes may be at work for a server that was killed
        roster.gather(tolerance.patience, early.append, enough=1)
    setting = setting or setting_of_nodes(spec, roster)
    run, timeout = name_run(folder.path), float(config["round-timeout"])
    engine = FlowerEngine(grid, roster, spec.method, setting.task, tolerance, run, timeout)
    return play(spec, setting, folder, watching, engine, tolerance, early)


def name_run(folder: Path) -> str:
    """What this run is called on the nodes: the same when it is resumed, another for every new one."""
    path = folder / NAME
    if not path.exists():
        write_atomic(path, json.dumps({"run": secrets.token_hex(8)}).encode())
    try:
        return str(json.loads(path.read_bytes())["run"])
    except (ValueError, KeyError, TypeError):
        raise BadInput(f"{path}: is damaged; restore it, or start again in another out") from None


def setting_of_nodes(spec: Spec, roster: Roster) -> Setting:
    """What the nodes have in common, as the first of them said."""
    if roster.shape is None:
        raise TooFewClients("no node came whose data could be used; start the nodes, or raise gathering or patience")
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


def make_site(spec: Spec, node: Mapping[str, Any], config: Mapping[str, Any], data: NodeData | None = None) -> Site:
    """What a node's operator set up (its node config): client-id, kind, data, data-root, state-dir, device.

    ``data`` are the node's data, if they have been read already.
    """
    task, info, shard, identity = data or read_data(spec, node)
    if node.get("kind", info.kind) != info.kind:
        raise BadInput(f"node config: kind={node['kind']} but client {info.id} of this run's fleet is of {info.kind}")
    # Where Flower has numbered the nodes, they are a simulation's, and all on the server's machine.
    usual = "states" if "client-id" in node else f"{config['out']}/{STATES}"
    states = Path(str(node.get("state-dir", usual))).absolute()
    prepare_process(spec.threads)
    return Site(
        spec.method,
        task,
        info,
        shard,
        states,
        identity,
        pick_device(str(node.get("device", spec.device)), spec.precision),
    )


def read_data(spec: Spec, node: Mapping[str, Any]) -> NodeData:
    """The data of the node's client: its part of the run's data set, or a data set of its own."""
    client = node.get("client-id", node.get("partition-id"))
    if type(client) is not int:
        raise BadInput(f"node config: client-id={client!r} must be the number of a client in fleet; add client-id=0")
    root = data_root(str(node["data-root"]) if "data-root" in node else None)
    if spec.data == ON_NODES:
        return own_data(spec, client, node, root)
    setting = prepare(spec, root)
    known = {c.id: (c, s) for c, s in zip(setting.clients, setting.shards, strict=True)}
    if client not in known:
        raise BadInput(f"node config: client-id={client} is not of this run, which has {sorted(known)}")
    info, shard = known[client]
    return NodeData(setting.task, info, shard, setting.identity(spec))


def own_data(spec: Spec, client: int, node: Mapping[str, Any], root: Path) -> NodeData:
    """All of the node's own data set is its client's shard."""
    fleet = parse_fleet(spec.fleet, spec.T)
    if not 0 <= client < len(fleet):
        raise BadInput(f"node config: client-id={client} is not of this run, which has 0 to {len(fleet) - 1}")
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
    return NodeData(task, info, shard, {"specification": spec.digest(), "classes": classes})


def whole(spec: Spec, dataset: Dataset) -> Images:
    partition = iid(dataset.y_train.numpy(), dataset.y_test.numpy(), 1, seed(spec.seed, "partition"))
    if spec.holdout:
        partition = hold_out(partition, spec.holdout, seed(spec.seed, "holdout"))
        dataset = dataclasses.replace(dataset, x_test=dataset.x_train, y_test=dataset.y_train)
    (shard,) = make_shards(dataset, partition, spec.augment)
    return shard
