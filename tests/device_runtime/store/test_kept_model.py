"""A device's last model: what it spares, and what a server may not do with it."""

from pathlib import Path

import numpy as np
import pytest

from fedwright.device_runtime.store.journal import JournalEntry
from fedwright.device_runtime.store.kept_model import KeptModel
from fedwright.protocol import patches, tensors
from fedwright.protocol.blobs import BlobStore, make_ref
from fedwright.protocol.messages import BlobRef, Patch, Recipe, Returns, Task

BEFORE = tensors.save({"w": np.arange(40, dtype=np.float32).reshape(4, 10)})
AFTER = {"w": np.arange(40, dtype=np.float32).reshape(4, 10) + 0.5}


@pytest.fixture
def blobs(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path, sync=False)


def names(refs: list[BlobRef]) -> set[str]:
    return {ref.sha256 for ref in refs}


def task_after(base: bytes, blobs: BlobStore, *, weights: BlobRef | None = None) -> tuple[Task, bytes]:
    """A task whose weights are told as a change of a base, and the bytes of the change."""
    change = patches.change_of(tensors.load(BEFORE), AFTER, codec="int8")
    (blobs.folder / "scratch").write_bytes(BEFORE)
    made = make_ref(patches.patched(blobs.folder / "scratch", change), inline=False)
    patch = Patch(make_ref(base).sha256, make_ref(change, inline=False))
    refs = (make_ref(b"artifact"), weights or made)
    return Task("t", "b", "run", 2, *refs, Recipe(8, 0.1, 1), Returns(), 60.0, keeps=True, patch=patch), change


def test_weights_are_put_together_of_what_is_here(blobs: BlobStore) -> None:
    task, change = task_after(BEFORE, blobs)
    kept, base = KeptModel(blobs), blobs.put_bytes(BEFORE)
    wanted = names(kept.wanted(task))
    blobs.put_bytes(change)

    assert wanted == {task.artifact.sha256, make_ref(change).sha256}
    assert kept.complete(task)
    assert blobs.has(task.weights.sha256)
    # The model takes the place of the one before, and nothing else of the task is of use.
    assert names(kept.spent(JournalEntry(task))) == {make_ref(change).sha256}
    assert not blobs.has(base)


def test_without_its_base_the_whole_is_wanted(blobs: BlobStore) -> None:
    task, _ = task_after(BEFORE, blobs)

    assert names(KeptModel(blobs).wanted(task)) == {task.artifact.sha256, task.weights.sha256}


def test_a_large_blob_is_not_read_as_a_base(blobs: BlobStore) -> None:
    large = tensors.save({"frozen": np.zeros(10_000, np.float32)})
    task, _ = task_after(large, blobs)
    blobs.put_bytes(large)

    assert task.weights.sha256 in names(KeptModel(blobs).wanted(task))


@pytest.mark.parametrize("base", [BEFORE, b"no tensors at all"], ids=["another name", "no model"])
def test_what_does_not_come_out_as_announced_is_fetched_whole(blobs: BlobStore, base: bytes) -> None:
    task, change = task_after(base, blobs, weights=make_ref(bytes(1000), inline=False))
    kept = KeptModel(blobs)
    blobs.put_bytes(base)
    blobs.put_bytes(change)

    assert not kept.complete(task)
    assert task.weights.sha256 in names(kept.wanted(task))
