"""Figures as a run of MLflow: on the server that MLFLOW_TRACKING_URI names, else in files beside the run."""

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from mlflow.entities import Metric, Param
from mlflow.tracking import MlflowClient

from fedwright.server_runtime.track.base import Described

URI = "MLFLOW_TRACKING_URI"
ALLOW_FILES = "MLFLOW_ALLOW_FILE_STORE"
TAG = "fedwright.identity"
# MLflow takes no longer value of a parameter, and no more parameters at a time.
MOST_VALUE = 500
AT_ONCE = 100


class MlflowRun:
    """One run of an experiment, found again by the identity of ours."""

    def __init__(self, described: Described) -> None:
        uri = os.environ.get(URI) or (described.folder / "mlflow").absolute().as_uri()
        with _files_allowed():
            self._client = MlflowClient(tracking_uri=uri)
            experiment = self._client.get_experiment_by_name(described.project)
            place = experiment.experiment_id if experiment else self._client.create_experiment(described.project)
        known = self._client.search_runs([place], f"tags.`{TAG}` = '{described.identity}'", max_results=1)
        tags = {TAG: described.identity}
        run = known[0] if known else self._client.create_run(place, run_name=described.name, tags=tags)
        self._run = run.info.run_id
        if known:
            self._client.update_run(self._run, status="RUNNING")
            return
        params = [Param(name, str(value)[:MOST_VALUE]) for name, value in described.settings.items()]
        for start in range(0, len(params), AT_ONCE):
            self._client.log_batch(self._run, params=params[start : start + AT_ONCE])
        self._client.log_text(self._run, described.config, "config.toml")
        self._client.log_text(self._run, described.ledger, "ledger.txt")

    def numbers(self, step: int, figures: Mapping[str, float]) -> None:
        """A point of every curve."""
        now_ms = int(time.time() * 1000)
        self._client.log_batch(self._run, metrics=[Metric(name, v, now_ms, step) for name, v in figures.items()])

    def file(self, path: Path) -> None:
        """Keep it with the run."""
        self._client.log_artifact(self._run, str(path))

    def close(self) -> None:
        """The run is over, or stopped for now."""
        self._client.set_terminated(self._run)


@contextmanager
def _files_allowed() -> Iterator[None]:
    """MLflow wants to be told that plain files will do, which need no database."""
    before = os.environ.get(ALLOW_FILES)
    os.environ[ALLOW_FILES] = "true"
    try:
        yield
    finally:
        if before is None:
            del os.environ[ALLOW_FILES]
        else:
            os.environ[ALLOW_FILES] = before


def open_tracker(described: Described) -> MlflowRun:
    """A tracker for one run."""
    return MlflowRun(described)
