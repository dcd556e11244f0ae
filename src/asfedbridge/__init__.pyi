"""The public names, each imported when it is first used."""

from .core.client import Client as Client
from .core.errors import BadInput as BadInput
from .core.errors import CallbackFailed as CallbackFailed
from .core.errors import Diverged as Diverged
from .core.errors import TooFewClients as TooFewClients
from .core.errors import WorkerLost as WorkerLost
from .core.method import Method as Method
from .core.method import register_method as register_method
from .core.payload import Payload as Payload
from .core.payload import Shapes as Shapes
from .core.plugins import load_plugin as load_plugin
from .core.task import ClientInfo as ClientInfo
from .core.task import Output as Output
from .core.task import Round as Round
from .core.task import Task as Task
from .core.task import Upload as Upload
from .core.training import fit_backbone as fit_backbone
from .core.training import supervise as supervise
from .data.sources.registry import register_data as register_data
from .models.registry import register_model as register_model
from .runs.api import federate as federate
from .runs.api import recipe as recipe
from .runs.api import run as run
from .runs.callback import Callback as Callback
from .runs.callback import register_callback as register_callback
from .runs.callbacks.early_stopping import EarlyStopping as EarlyStopping
from .runs.callbacks.mlflow_logger import MLflowLogger as MLflowLogger
from .runs.callbacks.wandb_logger import WandbLogger as WandbLogger
from .runs.federation import Federation as Federation
from .runs.federation import Participant as Participant
from .runs.result import Result as Result
from .runs.result import load as load
from .runs.search import load_client as load_client
from .runs.spec import Spec as Spec
from .runs.trained import Evaluation as Evaluation
from .runs.trained import Prediction as Prediction
from .runs.trained import TrainedClient as TrainedClient

__all__: list[str]
__version__: str
