"""The engine for real machines: the same round loop and client turn over Flower. Only this package imports flwr."""

import importlib.util

from asfedbridge.core import BadInput

if importlib.util.find_spec("flwr") is None:
    raise BadInput("engine=flower: the package flwr is not installed; pip install 'asfedbridge[flower]'")
