"""Numba kernels for spiking layers and images, and the dispatch between numba, SpikingJelly and plain torch."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
