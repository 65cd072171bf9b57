"""trackio: its folder on this machine, or a server of one's own."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mtbench_ray.trackers.base import BadSetting, Part, Picture, Place, Point, Tracker


class TrackioRun(Tracker):
    """See the module. A step is a whole number, and runs are known by their names."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._server = place.uri if place.uri.startswith(("http://", "https://")) else None
        if place.uri and not self._server:
            os.environ["TRACKIO_DIR"] = str(Path(place.uri).expanduser().resolve())
        import trackio

        self._trackio = trackio

    def check(self) -> None:
        """As in :class:`Tracker`."""
        if self.place.run_id:
            try:
                self._init(self.place.run_id, "must")
            except ValueError as error:
                raise BadSetting(
                    f"tracker.run_id={self.place.run_id}: {error}",
                    "it is the name of the training's run; tracker.project=PROJECT is its project",
                ) from error
            self._trackio.finish()

    def open(self, part: Part) -> str:
        """As in :class:`Tracker`."""
        if self.place.run_id:
            self._init(self.place.run_id, "must")
            return self.place.run_id
        name = part.tracker_id or part.name
        self._init(name, "allow")
        return name

    def point(self, point: Point) -> None:
        """As in :class:`Tracker`."""
        line: dict[str, Any] = point.named()
        if point.rows:
            data = [dict(zip(point.columns, row, strict=True)) for row in point.rows]
            line[f"{point.key}/rows"] = self._trackio.Table(data=data)
        self._log(line, point.step)

    def picture(self, picture: Picture) -> None:
        """As in :class:`Tracker`."""
        self._log({picture.key: self._trackio.Image(picture.path)}, picture.step)

    def close(self) -> None:
        """As in :class:`Tracker`."""
        with _strict():
            self._trackio.finish()

    def _init(self, name: str, resume: str) -> None:
        self._trackio.init(
            project=self.place.project, name=name, resume=resume, server_url=self._server,
            embed=False, auto_log_gpu=False, auto_log_cpu=False, private=True,
        )  # fmt: skip

    def _log(self, line: dict[str, Any], step: float) -> None:
        with _strict():
            self._trackio.log(line, step=int(step))


@contextmanager
def _strict() -> Iterator[None]:
    """trackio warns where it could not keep something, and goes on: here that is an error."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for one in caught:
        if "trackio" in str(one.message).lower():
            raise OSError(str(one.message))
