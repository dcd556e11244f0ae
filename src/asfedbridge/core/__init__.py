"""Types, formulas and checks for all packages. Needs torch and numpy; only reading.py and plugins.py read files."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
