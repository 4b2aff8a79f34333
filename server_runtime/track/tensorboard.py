"""Figures as TensorBoard's event files: tensorboard --logdir runs."""

import shutil
import time
from collections.abc import Mapping
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.plugins.text.metadata import create_summary_metadata
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from fedwright.server_runtime.track.base import Described


class EventFiles:
    """A folder of event files; every life of a server writes one of its own."""

    def __init__(self, described: Described) -> None:
        self._folder = described.folder / "tensorboard"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._writer = EventFileWriter(str(self._folder))
        self._text("config", described.config)
        self._text("ledger", described.ledger)

    def _text(self, tag: str, text: str) -> None:
        """Indented, so that it is shown as it is and not as Markdown."""
        shown = "\n".join(f"    {line}" for line in text.splitlines())
        shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
        tensor = TensorProto(dtype="DT_STRING", string_val=[shown.encode()], tensor_shape=shape)
        metadata = create_summary_metadata(display_name=tag, description="")
        self._add(0, Summary.Value(tag=tag, metadata=metadata, tensor=tensor))

    def _add(self, step: int, *values: Summary.Value) -> None:
        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))

    def numbers(self, step: int, figures: Mapping[str, float]) -> None:
        """A point of every curve."""
        self._add(step, *(Summary.Value(tag=name, simple_value=value) for name, value in figures.items()))
        self._writer.flush()

    def file(self, path: Path) -> None:
        """Keep a copy beside the events."""
        shutil.copyfile(path, self._folder / path.name)

    def close(self) -> None:
        """Have everything on the disk."""
        self._writer.close()


def open_tracker(described: Described) -> EventFiles:
    """A tracker for one run."""
    return EventFiles(described)
