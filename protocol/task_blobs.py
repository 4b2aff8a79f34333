"""The blobs of a task, listed once."""

from msgspec import structs

from fedwright.protocol.blobs import BlobStore, inlined
from fedwright.protocol.messages import BlobRef, Task


def blobs_of(task: Task) -> list[BlobRef]:
    """All that a device may ask for to do a task."""
    return [*common_blobs(task), *own_blobs(task)]


def common_blobs(task: Task) -> list[BlobRef]:
    """What other tasks may need too: the artifact, a frozen base, public rows."""
    frozen = None if task.passing else task.frozen
    return [ref for ref in (task.artifact, frozen, task.public) if ref is not None]


def own_blobs(task: Task) -> list[BlobRef]:
    """What is of no use once the task is over: weights, however they come, and side inputs if there are any."""
    return [task.weights, *(() if task.patch is None else (task.patch.change,)), *_beside_weights(task)]


def sent_blobs(task: Task) -> list[BlobRef]:
    """Those of its own that go to a device which holds what it was asked to keep: of a patch the change alone."""
    return [task.weights if task.patch is None else task.patch.change, *_beside_weights(task)]


def with_inline(store: BlobStore, task: Task) -> Task:
    """The task with what tells its weights inside, when that fits one chunk."""
    if task.patch is None:
        return structs.replace(task, weights=inlined(store, task.weights))
    return structs.replace(task, patch=structs.replace(task.patch, change=inlined(store, task.patch.change)))


def _beside_weights(task: Task) -> list[BlobRef]:
    frozen = task.frozen if task.passing else None
    return [ref for ref in (task.sides, frozen) if ref is not None]
