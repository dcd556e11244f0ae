"""What trained clients have in common: measured on finished runs, never trained here."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
