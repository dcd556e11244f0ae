"""AS-FedBridge: federated learning for mixed fleets of artificial (ANN) and spiking (SNN) neural networks.

>>> import asfedbridge as afb
>>> spec = afb.recipe("smoke", method="as-fedbridge", seed=1)
>>> result = afb.run(spec, out="runs/mine")
>>> result.accuracy["snn"]

Names are imported when they are first used, so that ``import asfedbridge`` stays fast. docs/python.md has more.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__version__ = "0.1.0"
