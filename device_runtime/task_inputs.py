"""What a task is done with, and that it was given up; the agent itself needs no more of how tasks are done."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fedwright.protocol.messages import Task


@dataclass(frozen=True)
class Inputs:
    """Where the blobs of a task lie."""

    artifact: Path
    weights: Path
    sides: Path | None = None
    frozen: Path | None = None
    public: Path | None = None


def inputs_of(task: Task, path: Callable[[str], Path]) -> Inputs:
    """The blobs of a task; path: where a blob lies, by its hash."""
    refs = (task.sides, task.frozen, task.public)
    sides, frozen, public = (None if ref is None else path(ref.sha256) for ref in refs)
    return Inputs(path(task.artifact.sha256), path(task.weights.sha256), sides, frozen, public)


def inputs_at(paths: dict[str, str]) -> Inputs:
    """Where the blobs of a task lie, by the names of its parts."""
    return Inputs(**{name: Path(path) for name, path in paths.items()})


class Stopped(Exception):
    """The task was given up because the agent was told to."""
