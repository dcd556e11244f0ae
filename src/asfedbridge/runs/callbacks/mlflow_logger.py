"""Logs a run to MLflow."""

import time
from collections.abc import Mapping
from typing import Any

from asfedbridge.core.errors import BadInput
from asfedbridge.runs.callback import Run, register_callback
from asfedbridge.runs.callbacks.round_logger import Outcome, RoundLogger, load_package
from asfedbridge.runs.callbacks.scalars import flat_spec

MAX_PARAMS, MAX_METRICS = 100, 1000  # in one request, by MLflow's limits
STATUS: dict[Outcome, str] = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}


@register_callback("mlflow")
class MLflowLogger(RoundLogger):
    """Logs parameters, the numbers of every round and the results to MLflow.

    ``uri`` is the tracking store (default: $MLFLOW_TRACKING_URI, else sqlite:///mlflow.db). ``name`` is the name of the
    run (default: that of the run folder).
    """

    name = "mlflow"

    def __init__(self, experiment: str = "asfedbridge", uri: str = "", name: str = "") -> None:
        self._library = load_package("mlflow", "mlflow")
        self._experiment, self._uri, self._run_name = experiment, uri, name

    def open(self, run: Run, known: str) -> tuple[str, bool]:
        exceptions = load_package("mlflow.exceptions", "mlflow")
        try:
            self._client = self._library.MlflowClient(tracking_uri=self._uri or None)
            try:
                if known:
                    self._client.update_run(known, status="RUNNING")
                    self._run = known
                    return known, True
            except exceptions.MlflowException:
                pass  # the MLflow run was deleted, or the store is another one
            self._run = self._create(run)
        except exceptions.MlflowException as error:
            where = self._uri or self._library.get_tracking_uri()
            raise BadInput(f"callback mlflow: cannot use uri={where}: {str(error).splitlines()[0]}") from None
        return self._run, False

    def log(self, step: int, scalars: Mapping[str, float]) -> None:
        self._log_metrics(step, scalars)

    def close(self, outcome: Outcome, results: Mapping[str, Any]) -> None:
        self._log_metrics(0, results)
        self._client.set_terminated(self._run, status=STATUS[outcome])

    def _create(self, run: Run) -> str:
        found = self._client.get_experiment_by_name(self._experiment)
        experiment = found.experiment_id if found else self._client.create_experiment(self._experiment)
        tags = {"asfedbridge.folder": str(run.path.absolute()), "asfedbridge.specification": run.spec.digest()}
        created = self._client.create_run(experiment, tags=tags, run_name=self._run_name or run.path.name)
        param = load_package("mlflow.entities", "mlflow").Param
        params = [param(key, str(value)) for key, value in flat_spec(run.spec).items()]
        for start in range(0, len(params), MAX_PARAMS):
            self._client.log_batch(created.info.run_id, params=params[start : start + MAX_PARAMS])
        return str(created.info.run_id)

    def _log_metrics(self, step: int, scalars: Mapping[str, float]) -> None:
        metric, now = load_package("mlflow.entities", "mlflow").Metric, int(1000 * time.time())
        metrics = [metric(key, float(value), now, step) for key, value in scalars.items()]
        for start in range(0, len(metrics), MAX_METRICS):
            self._client.log_batch(self._run, metrics=metrics[start : start + MAX_METRICS])
