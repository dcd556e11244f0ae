"""All parts of flwr that are used but not in its public API (``flwr.app``, ``flwr.clientapp``, ``flwr.serverapp``).

No other module imports these parts. Each is loaded on first use, so that a process loads only what it needs. ``check``
reports parts that the installed flwr lacks; tests/deploy/test_flwr_internals.py calls it and explains what to do then.
"""

import importlib
import inspect
from typing import Any, NamedTuple

from asfedbridge.core import BadInput


class Internal(NamedTuple):
    """``name`` in ``module`` (empty: the module itself), and the parameters or attributes that we use."""

    module: str
    name: str
    why: str
    needs: tuple[str, ...] = ()


RUN = ("runtime_api_address", "token", "insecure", "certificates", "parent_pid", "runtime_dependency_install")
INTERNALS = {
    # All turns of a run are taken by one forked process: a new one for each message would import torch, which takes
    # seconds, and read data and client again.
    "run_clientapp": Internal("flwr.supernode.runtime.run_clientapp", "run_clientapp", "runs a turn, in a fork", RUN),
    "clientapp_runtime": Internal(
        "flwr.supernode.runtime.run_clientapp", "", "its exit would end the process", ("flwr_exit",)
    ),
    "AutoExecPlugin": Internal(
        "flwr.supercore.superexec.plugin", "AutoExecPlugin", "knows a task's run", ("launch_task",)
    ),
    "run_serverapp": Internal(
        "flwr.superlink.runtime.run_serverapp", "run_serverapp", "runs the server, in a fork", (*RUN, "log_queue")
    ),
    "superexec": Internal(
        "flwr.supercore.superexec.run_superexec",
        "",
        "its executor is replaced, and its pauses",
        ("run_superexec", "get_executor", "AutoExecPlugin", "time"),
    ),
    "SubprocessExecutor": Internal(
        "flwr.supercore.superexec.executor.subprocess_executor", "SubprocessExecutor", "base class", ("launch",)
    ),
    "ExecutionSpec": Internal(
        "flwr.supercore.superexec.executor.types",
        "ExecutionSpec",
        "describes a task",
        ("task_type", "runtime_api_address", "token", "insecure", "root_certificates_path"),
    ),
    "LaunchResult": Internal(
        "flwr.supercore.superexec.executor.types", "LaunchResult", "result of a launch", ("accepted",)
    ),
    "TaskType": Internal("flwr.supercore.constant", "TaskType", "kinds of tasks", ("CLIENT_APP", "SERVER_APP")),
    "exit_handler": Internal(
        "flwr.supercore.exit.exit_handler",
        "",
        "a fork drops its parent's handlers",
        ("registered_exit_handlers", "trigger_exit_handlers"),
    ),
    "mirror_output_to_queue": Internal("flwr.supercore.logger", "mirror_output_to_queue", "for `flwr log`"),
    "load_superexec_auth_secret": Internal("flwr.supercore.auth", "load_superexec_auth_secret", "reads the secret"),
    "validate_and_resolve_root_certificates": Internal(
        "flwr.supercore.tls", "validate_and_resolve_root_certificates", "TLS certificates of a task"
    ),
    "flower_superlink": Internal("flwr.superlink.cli", "flower_superlink", "the command, run in a fork"),
    "flower_supernode": Internal("flwr.supernode.cli", "flower_supernode", "the command, run in a fork"),
    "flwr_command": Internal("flwr.cli.app", "app", "the command `flwr`, run in a fork"),
    # Waiting times that are fixed in flwr.
    "start_client_internal": Internal(
        "flwr.supernode.start_client_internal", "", "a node asks for messages every 3 seconds", ("time",)
    ),
    "pull_objects": Internal(
        "flwr.supercore.inflatable.inflatable_utils",
        "pull_objects",
        "fetches the parts of a message",
        ("object_ids", "pull_object_fn", "max_time", "initial_backoff"),
    ),
    "pull_and_inflate_object_from_tree": Internal(
        "flwr.supercore.inflatable.inflatable_utils",
        "pull_and_inflate_object_from_tree",
        "it waits a second for a part that is not there yet",
        ("initial_backoff",),
    ),
    "in_memory_corestate": Internal(
        "flwr.supercore.corestate.in_memory_corestate",
        "",
        "heartbeat timeout of tasks",
        ("HEARTBEAT_DEFAULT_INTERVAL",),
    ),
    "sql_corestate": Internal(
        "flwr.supercore.corestate.sql_corestate", "", "heartbeat timeout of tasks", ("HEARTBEAT_DEFAULT_INTERVAL",)
    ),
    "in_memory_linkstate": Internal(
        "flwr.server.superlink.linkstate.in_memory_linkstate", "", "heartbeat timeout of nodes", ("HEARTBEAT_PATIENCE",)
    ),
    "sql_linkstate": Internal(
        "flwr.server.superlink.linkstate.sql_linkstate", "", "heartbeat timeout of nodes", ("HEARTBEAT_PATIENCE",)
    ),
    # Unix sockets instead of TCP ports, which every user of the machine could reach.
    "ProtobufClient": Internal(
        "flwr.supercore.protobuf.client", "ProtobufClient", "connects to a socket", ("__init__",)
    ),
    # Replies are fetched with limits on size and time; flwr's Grid would parse whatever a node wrote.
    "HttpGrid": Internal(
        "flwr.superlink.grid.http_grid", "HttpGrid", "its client fetches replies", ("_runtime_client", "run")
    ),
    "ConfirmMessageReceivedRequest": Internal(
        "flwr.proto.message_pb2", "ConfirmMessageReceivedRequest", "lets the SuperLink delete a reply"
    ),
    "PullAppMessagesRequest": Internal("flwr.proto.runtime_pb2", "PullAppMessagesRequest", "asks for replies"),
    "get_object_body": Internal("flwr.supercore.inflatable.inflatable_object", "get_object_body", "sizes of arrays"),
    "get_object_head_values_from_object_content": Internal(
        "flwr.supercore.inflatable.inflatable_object", "get_object_head_values_from_object_content", "kinds of parts"
    ),
    "iterate_object_tree": Internal(
        "flwr.supercore.inflatable.inflatable_object", "iterate_object_tree", "parts of a reply"
    ),
    "make_pull_object_fn_protobuf": Internal(
        "flwr.supercore.inflatable.inflatable_protobuf_utils", "make_pull_object_fn_protobuf", "fetches a part"
    ),
    "ObjectPullError": Internal("flwr.supercore.inflatable.inflatable_utils", "ObjectPullError", "a part is missing"),
    "inflate_object_from_contents": Internal(
        "flwr.supercore.inflatable.inflatable_utils", "inflate_object_from_contents", "a message from its parts"
    ),
    # Constants.
    "ErrorCode": Internal(
        "flwr.common.constant",
        "ErrorCode",
        "reasons for a missing reply",
        ("NODE_UNAVAILABLE", "CLIENT_APP_CRASHED", "MESSAGE_UNAVAILABLE", "REPLY_MESSAGE_UNAVAILABLE"),
    ),
    "SYSTEM_TIME_TOLERANCE": Internal("flwr.common.constant", "SYSTEM_TIME_TOLERANCE", "tolerated clock difference"),
    "TIMESTAMP_TOLERANCE": Internal("flwr.common.constant", "TIMESTAMP_TOLERANCE", "tolerated clock difference"),
}


def __getattr__(name: str) -> Any:
    if name not in INTERNALS:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    found = INTERNALS[name]
    try:
        module = importlib.import_module(found.module)
        return getattr(module, found.name) if found.name else module
    except (ImportError, AttributeError) as error:
        raise BadInput(
            f"this version of flwr has no {found.module}{'.' if found.name else ''}{found.name} ({error}); "
            f"install the one in constraints.txt: pip install 'flwr[simulation]==1.41.0'"
        ) from None


def check() -> list[str]:
    """One line for each internal that is missing or lacks a parameter or attribute that we use."""
    wrong = []
    for name, internal in INTERNALS.items():
        try:
            found = __getattr__(name)
        except BadInput as error:
            wrong.append(f"{name} ({internal.why}): {error}")
            continue
        known = set(dir(found)) | set(getattr(found, "__annotations__", {}))
        if inspect.isfunction(found):
            known |= set(inspect.signature(found).parameters)
        wrong += [f"{name} ({internal.why}): it has no {need}" for need in internal.needs if need not in known]
    return wrong
