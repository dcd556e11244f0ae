"""AS-FedBridge: federated learning for mixed fleets of artificial (ANN) and spiking (SNN) neural networks.

>>> import asfedbridge as afb
>>> spec = afb.recipe("smoke", method="as-fedbridge", seed=1)
>>> result = afb.run(spec, out="runs/mine")
>>> result.accuracy["snn"]

Names are imported when they are first used, so that ``import asfedbridge`` stays fast. docs/python.md has more.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asfedbridge.core.errors import BadInput as BadInput
    from asfedbridge.core.errors import Diverged as Diverged
    from asfedbridge.core.errors import WorkerLost as WorkerLost
    from asfedbridge.core.payload import Payload as Payload
    from asfedbridge.core.plugins import load_plugin as load_plugin
    from asfedbridge.core.protocol import ClientInfo as ClientInfo
    from asfedbridge.core.protocol import Method as Method
    from asfedbridge.core.protocol import Output as Output
    from asfedbridge.core.protocol import Round as Round
    from asfedbridge.core.protocol import Task as Task
    from asfedbridge.core.protocol import Upload as Upload
    from asfedbridge.core.protocol import register_method as register_method
    from asfedbridge.models.registry import register_model as register_model
    from asfedbridge.runs.api import federate as federate
    from asfedbridge.runs.api import recipe as recipe
    from asfedbridge.runs.api import run as run
    from asfedbridge.runs.federation import Federation as Federation
    from asfedbridge.runs.federation import Participant as Participant
    from asfedbridge.runs.result import Result as Result
    from asfedbridge.runs.result import load as load
    from asfedbridge.runs.spec import Spec as Spec

__version__ = "0.1.0"

_PLACES = {
    "asfedbridge.core.errors": ("BadInput", "Diverged", "WorkerLost"),
    "asfedbridge.core.payload": ("Payload",),
    "asfedbridge.core.plugins": ("load_plugin",),
    "asfedbridge.core.protocol": ("ClientInfo", "Method", "Output", "Round", "Task", "Upload", "register_method"),
    "asfedbridge.models.registry": ("register_model",),
    "asfedbridge.runs.api": ("federate", "recipe", "run"),
    "asfedbridge.runs.federation": ("Federation", "Participant"),
    "asfedbridge.runs.result": ("Result", "load"),
    "asfedbridge.runs.spec": ("Spec",),
}
_MODULES = {name: module for module, names in _PLACES.items() for name in names}
__all__ = ["__version__", *sorted(_MODULES)]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'asfedbridge' has no attribute '{name}'")
    value = globals()[name] = getattr(importlib.import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
