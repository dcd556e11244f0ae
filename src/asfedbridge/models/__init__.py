"""Backbones and the Bridge. One builder per family; the kind of a client only swaps the activation."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
