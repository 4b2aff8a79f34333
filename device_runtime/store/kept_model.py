"""The model of a device's last task, which stays so that the next one may come as what changed since."""

import logging

from msgspec import structs

from fedwright.device_runtime.store.journal import JournalEntry
from fedwright.protocol.blobs import BlobStore
from fedwright.protocol.errors import BadBlob
from fedwright.protocol.messages import BlobRef, Task, Update
from fedwright.protocol.task_blobs import common_blobs, own_blobs, sent_blobs

log = logging.getLogger(__name__)


class KeptModel:
    """At most one model beside those of the task in hand; where it is gone, the next one comes whole."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self._kept: str | None = None

    def wanted(self, task: Task) -> list[BlobRef]:
        """The blobs that a task is done with, or made of: the change in place of weights whose base is here."""
        patched = task.patch is not None and not self._blobs.has(task.weights.sha256) and self._holds_base(task)
        return [*common_blobs(task), *sent_blobs(task if patched else structs.replace(task, patch=None))]

    def _holds_base(self, task: Task) -> bool:
        """Whether the base is here, and no more to read than the weights that come of it."""
        base = "" if task.patch is None else task.patch.base
        return self._blobs.has(base) and self._blobs.path(base).stat().st_size <= task.weights.size_bytes

    def complete(self, task: Task) -> bool:
        """Put the weights together of what is here; False when they have to come whole."""
        if task.patch is None or self._blobs.has(task.weights.sha256):
            return True
        from fedwright.protocol import patches

        base, change = task.patch.base, task.patch.change.sha256
        try:
            made = self._blobs.put_bytes(patches.patched(self._blobs.path(base), self._blobs.path(change)))
        except BadBlob as err:
            log.warning("%s: what changed does not fit the model held here (%s); fetching it whole", task.title, err)
            made = ""
        if made == task.weights.sha256:
            return True
        for sha256 in {made, base} - {""}:
            self._blobs.remove(sha256)
        return False

    def spent(self, entry: JournalEntry) -> list[BlobRef]:
        """What is of no use once a task is over; a model that it leaves here takes the place of the one before."""
        task, answer = entry.task, entry.answer
        used = own_blobs(task)
        if isinstance(answer, Update) and answer.tensors is not None:
            used.append(answer.tensors)
        if not task.keeps or not self._blobs.has(task.weights.sha256):
            return used
        for sha256 in {self._kept, None if task.patch is None else task.patch.base} - {None, task.weights.sha256}:
            self._blobs.remove(str(sha256))
        self._kept = task.weights.sha256
        return [ref for ref in used if ref.sha256 != self._kept]
