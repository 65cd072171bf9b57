"""What a tracker is, and what it is given."""

from __future__ import annotations

import dataclasses
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Step = int | float


class BadSetting(Exception):
    """A setting or a key that no further try makes right.

    Args:
        message: What is wrong.
        hint: What to write instead.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


@dataclass(frozen=True)
class Place:
    """Where things are sent: the settings of a tracker, with nothing left open.

    Attributes:
        uri: Server or folder; empty for the tracker's own.
        project: Project or experiment.
        run_id: Of the training's own run; empty for runs of our own.
        offline: Write files for a later upload.
        folder: For files that the tracker keeps: the workspace.
        prefix: Begins every key.
    """

    kind: str
    uri: str
    project: str
    run_id: str
    offline: bool
    folder: str
    prefix: str


@dataclass(frozen=True)
class Point:
    """One evaluation.

    Attributes:
        key: Begins the names of its values.
        values: By the rest of their names.
        columns: Names of the columns of ``rows``.
        rows: Its verdicts, a line each; texts, whole numbers, numbers and None.
    """

    evaluation_id: str
    model: str
    step: Step
    key: str
    values: Mapping[str, float]
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[Any, ...], ...] = ()

    def named(self) -> dict[str, float]:
        """The values by their whole names."""
        return {f"{self.key}/{name}": value for name, value in self.values.items()}


@dataclass(frozen=True)
class Picture:
    """A PNG file that is shown at a step."""

    key: str
    step: Step
    path: str


@dataclass(frozen=True)
class Part:
    """What goes into one run of the tracker.

    Attributes:
        run: The training run; empty where all go into ``Place.run_id``.
        tracker_id: The tracker's run of an earlier time; empty for a new one.
        new: Ids of the evaluations that were not sent yet; ``points`` may hold others beside them.
    """

    run: str
    name: str
    tracker_id: str
    points: tuple[Point, ...]
    pictures: tuple[Picture, ...] = ()
    new: tuple[str, ...] = ()


@dataclass(frozen=True)
class Payload:
    """What the process of a tracker is given; with no ``parts`` it only checks the settings."""

    place: Place
    parts: tuple[Part, ...] = field(default=())

    def plain(self) -> dict[str, Any]:
        """As JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Payload:
        """The payload of :meth:`plain`."""
        return cls(
            Place(**plain["place"]),
            tuple(
                Part(
                    **{name: part[name] for name in ("run", "name", "tracker_id")},
                    points=tuple(Point(**one) for one in part["points"]),
                    pictures=tuple(Picture(**one) for one in part["pictures"]),
                    new=tuple(part["new"]),
                )
                for part in plain["parts"]
            ),
        )


class Tracker(ABC):
    """A tracker's package. One run of it is open at a time; any exception means: not sent."""

    def __init__(self, place: Place) -> None:
        self.place = place

    @abstractmethod
    def check(self) -> None:
        """See that the settings are right, as far as that can be seen before anything is sent.

        Raises:
            BadSetting: They are not. Any other exception: the service cannot be reached.
        """

    @abstractmethod
    def open(self, part: Part) -> str:
        """Begin or resume a run; returns its id."""

    @abstractmethod
    def point(self, point: Point) -> None:
        """Send one evaluation."""

    @abstractmethod
    def picture(self, picture: Picture) -> None:
        """Send one picture."""

    @abstractmethod
    def close(self) -> None:
        """End the run; returns once all of it is safe."""


def segment(text: str) -> str:
    """A text as one part of a key, between two slashes; every tracker takes it."""
    return re.sub(r"[^\w.\-]+", "_", text).strip("._") or "_"


def table_name(point: Point) -> str:
    """A file name for the rows of a point, another one where its values differ."""
    return f"{segment(point.model)[-60:]}-{point.evaluation_id[:8]}"
