"""Callbacks of the library: those that every run has, and those that a user can add."""

from asfedbridge.runs.callbacks.checkpointer import Checkpointer
from asfedbridge.runs.callbacks.diagnostics import Diagnostics
from asfedbridge.runs.callbacks.early_stopping import EarlyStopping
from asfedbridge.runs.callbacks.mlflow_logger import MLflowLogger
from asfedbridge.runs.callbacks.privacy_ledger import PrivacyLedger
from asfedbridge.runs.callbacks.recorder import Recorder
from asfedbridge.runs.callbacks.tensorboard import TensorBoard
from asfedbridge.runs.callbacks.wandb_logger import WandbLogger

__all__ = [
    "Checkpointer",
    "Diagnostics",
    "EarlyStopping",
    "MLflowLogger",
    "PrivacyLedger",
    "Recorder",
    "TensorBoard",
    "WandbLogger",
]
