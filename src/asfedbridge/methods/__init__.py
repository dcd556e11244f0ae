"""One file per method, client and server side together. Importing this package registers them all.

A file dropped into this folder is found by itself: adding a method touches nothing else.
"""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
