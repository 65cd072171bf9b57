"""MLflow: a server, or a folder."""

from __future__ import annotations

import os
import time

from mtbench_ray.trackers.base import BadSetting, Part, Picture, Place, Point, Tracker, table_name

_WRONG = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE", "PERMISSION_DENIED",
          "UNAUTHENTICATED", "ENDPOINT_NOT_FOUND")  # fmt: skip
"""What a server answers where the settings are wrong."""
_METRICS = 500
"""In one request; servers take no more than a thousand."""


class MlflowRun(Tracker):
    """See the module. A step is a whole number."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        # A folder is what the user asked for; MLflow would want a database there.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient

        try:
            self._client = MlflowClient(place.uri or None)
        except MlflowException as error:
            raise BadSetting(
                f"tracker.uri={place.uri} is of no kind that this MLflow knows:"
                f" {str(error).partition('.')[0]}",
                "a server (http://...) or a folder; for databases: pip install mlflow",
            ) from error
        self._error = MlflowException

    def check(self) -> None:
        """As in :class:`Tracker`."""
        try:
            if self.place.run_id:
                self._client.get_run(self.place.run_id)
            else:
                self._client.get_experiment_by_name(self.place.project)
        except self._error as error:
            if error.error_code not in _WRONG:
                raise
            what = f"tracker.run_id={self.place.run_id}" if self.place.run_id else "tracker.uri"
            said = str(error).splitlines()[0]
            raise BadSetting(
                f"{what}: MLflow says: {said}", "check tracker.uri and the id"
            ) from error

    def open(self, part: Part) -> str:
        """As in :class:`Tracker`."""
        self._id = self.place.run_id or part.tracker_id
        if not self._id:
            found = self._client.get_experiment_by_name(self.place.project)
            experiment = (
                found.experiment_id if found else self._client.create_experiment(self.place.project)
            )
            self._id = self._client.create_run(experiment, run_name=part.name).info.run_id
        return str(self._id)

    def point(self, point: Point) -> None:
        """As in :class:`Tracker`."""
        from mlflow.entities import Metric

        now, step = int(time.time() * 1000), int(point.step)
        values = [Metric(name, value, now, step) for name, value in point.named().items()]
        for first in range(0, len(values), _METRICS):
            self._client.log_batch(self._id, values[first : first + _METRICS])
        name = f"{self.place.prefix}.{point.evaluation_id}"
        self._client.set_tag(self._id, name, f"{point.key} step {step}")
        if point.rows:
            columns = zip(*point.rows, strict=True)
            table = {name: list(cells) for name, cells in zip(point.columns, columns, strict=True)}
            file = f"{point.key}/rows/{table_name(point)}-{now}.json"
            self._client.log_table(self._id, table, file)

    def picture(self, picture: Picture) -> None:
        """As in :class:`Tracker`."""
        self._client.log_artifact(self._id, picture.path, picture.key.rpartition("/")[0])

    def close(self) -> None:
        """As in :class:`Tracker`."""
        if not self.place.run_id:
            self._client.set_terminated(self._id)
