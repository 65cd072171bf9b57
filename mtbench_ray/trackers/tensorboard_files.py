"""TensorBoard: event files.

They lie in a folder of their own, below that of the training run where ``tracker.run_id`` names it:
TensorBoard reads on in the newest file of a folder only, so that a file of ours beside the
training's would stop the training's curves.
"""

from __future__ import annotations

import struct
import time
from pathlib import Path
from typing import Any

from mtbench_ray.trackers.base import Part, Picture, Point, Tracker, segment

_ROWS = 500
"""Rows of a table; TensorBoard shows it as text."""


class TensorboardFiles(Tracker):
    """See the module. A step is a whole number."""

    def check(self) -> None:
        """As in :class:`Tracker`."""

    def open(self, part: Part) -> str:
        """As in :class:`Tracker`."""
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        name = part.tracker_id or segment(part.name)
        if self.place.run_id:
            name = f"{self.place.run_id}/{segment(self.place.prefix)}"
        self._writer = EventFileWriter(str(Path(self.place.uri) / name))
        return name

    def point(self, point: Point) -> None:
        """As in :class:`Tracker`."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [
            Summary.Value(tag=name, simple_value=value) for name, value in point.named().items()
        ]
        if point.rows:
            values.append(_text(f"{point.key}/rows", _markdown(point)))
        self._add(values, point.step)

    def picture(self, picture: Picture) -> None:
        """As in :class:`Tracker`."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        content = Path(picture.path).read_bytes()
        width, height = struct.unpack(">II", content[16:24])  # PNG's first chunk
        image = Summary.Image(
            encoded_image_string=content, width=width, height=height, colorspace=4
        )
        self._add([Summary.Value(tag=picture.key, image=image)], picture.step)

    def close(self) -> None:
        """As in :class:`Tracker`."""
        self._writer.flush()
        self._writer.close()

    def _add(self, values: list[Any], step: float) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        summary = Summary(value=values)
        self._writer.add_event(Event(wall_time=time.time(), step=int(step), summary=summary))


def _text(tag: str, text: str) -> Any:
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto

    plugin = SummaryMetadata.PluginData(plugin_name="text")
    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
    tensor = TensorProto(dtype="DT_STRING", string_val=[text.encode()], tensor_shape=shape)
    return Summary.Value(tag=tag, metadata=SummaryMetadata(plugin_data=plugin), tensor=tensor)


def _markdown(point: Point) -> str:
    """The table without its long texts."""
    shown = [
        at
        for at, name in enumerate(point.columns)
        if name not in ("question", "answer", "judgment")
    ]
    lines = [[point.columns[at] for at in shown], ["---"] * len(shown)]
    lines += [
        ["" if row[at] is None else str(row[at]) for at in shown] for row in point.rows[:_ROWS]
    ]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
