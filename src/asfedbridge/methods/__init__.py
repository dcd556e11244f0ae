"""One file per method, client and server side together. Importing this package registers them all.

A file dropped into this folder is found by itself: adding a method touches nothing else.
"""

import importlib
import pkgutil

from asfedbridge.methods.as_fedbridge import ASFedBridge
from asfedbridge.methods.standalone import Standalone

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

DEFAULT = ASFedBridge.name  # of recipes and commands that name no method
REFERENCE = Standalone.name  # what the others are compared with
