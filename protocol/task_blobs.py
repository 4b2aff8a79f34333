"""The blobs of a task, listed once."""

from fedwright.protocol.messages import BlobRef, Task


def blobs_of(task: Task) -> list[BlobRef]:
    """All that a device fetches to do a task."""
    return [*common_blobs(task), *own_blobs(task)]


def common_blobs(task: Task) -> list[BlobRef]:
    """What other tasks may need too: the artifact, a frozen base, public rows."""
    frozen = None if task.passing else task.frozen
    return [ref for ref in (task.artifact, frozen, task.public) if ref is not None]


def own_blobs(task: Task) -> list[BlobRef]:
    """What is of no use once the task is over: weights, and side inputs if there are any."""
    frozen = task.frozen if task.passing else None
    return [ref for ref in (task.weights, task.sides, frozen) if ref is not None]
