"""Backbones and the Bridge. Each family has one class; a client's kind selects its activation and convolutions."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
