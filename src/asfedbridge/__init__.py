"""AS-FedBridge: federated learning for mixed fleets of artificial (ANN) and spiking (SNN) neural networks."""

__version__ = "0.1.0"
