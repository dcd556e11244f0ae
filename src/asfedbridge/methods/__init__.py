"""One module per method, client and server side together. Importing this package registers all methods.

Every module in this folder is imported automatically, so adding a method needs no other change.
"""

import importlib
import pkgutil

from asfedbridge.methods.as_fedbridge import ASFedBridge
from asfedbridge.methods.standalone import Standalone

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

DEFAULT = ASFedBridge.name  # for recipes and commands without a method
REFERENCE = Standalone.name  # comparisons show differences to this method
