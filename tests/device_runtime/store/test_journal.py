"""The journal and the checkpoint: what survives a restart, and what a damaged file costs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedwright.device_runtime.store.checkpoint import Checkpoint
from fedwright.device_runtime.store.journal import KEEP_FINISHED, Journal
from fedwright.protocol.blobs import make_ref
from fedwright.protocol.errors import IdentityTaken
from fedwright.protocol.messages import Recipe, Refusal, Returns, Task
from helpers.present import present

REF = make_ref(b"blob")


def task(name: str) -> Task:
    recipe = Recipe(batch=8, learning_rate=0.1, seed=3)
    return Task(name, "boot", "run", 1, REF, REF, recipe, Returns(), deadline_s=5.0)


def reopened(journal: Journal, folder: Path) -> Journal:
    journal.close()
    return Journal(folder)


def test_a_task_and_its_answer_survive_a_restart(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.accept(task("t1"))
    journal = reopened(journal, tmp_path)
    assert present(journal.entry).task == task("t1")
    assert present(journal.entry).answer is None

    journal.answer(Refusal("t1", "failed", "no"))
    journal = reopened(journal, tmp_path)
    assert present(journal.entry).answer == Refusal("t1", "failed", "no")
    journal.close()


def test_a_finished_task_is_remembered_and_the_hands_are_free(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.accept(task("t1"))
    journal.finish()
    journal = reopened(journal, tmp_path)
    assert journal.entry is None
    assert journal.is_finished("t1")
    assert not journal.is_finished("t2")
    journal.close()


def test_the_memory_of_finished_tasks_is_bounded(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for number in range(KEEP_FINISHED + 1):
        journal.accept(task(f"t{number}"))
        journal.finish()
    assert not journal.is_finished("t0")
    assert journal.is_finished("t1")
    journal.close()


def test_a_second_agent_on_the_same_folder_is_told_so(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    with pytest.raises(IdentityTaken, match="another agent on this machine uses the state folder"):
        Journal(tmp_path)
    journal.close()


@pytest.mark.parametrize("content", [b"", b"garbage", b"\x82\xa5entry\xff"], ids=["empty", "garbage", "cut off"])
def test_a_damaged_journal_is_set_aside_not_fatal(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "journal").write_bytes(content)
    journal = Journal(tmp_path)
    assert journal.entry is None
    assert (tmp_path / "journal.unreadable").read_bytes() == content
    journal.close()


def test_a_checkpoint_comes_back_for_its_own_task_only(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / "checkpoint")
    slots: dict[str, NDArray[Any]] = {"w": np.arange(3, dtype=np.float32), "step": np.array(4, np.int64)}
    checkpoint.save("t1", 12, 0.1 + 0.2, slots)

    saved = checkpoint.load("t1")
    assert (present(saved).step, present(saved).loss_first) == (12, 0.1 + 0.2)
    np.testing.assert_array_equal(present(saved).slots["w"], slots["w"])
    assert checkpoint.load("t2") is None
    checkpoint.clear()
    assert checkpoint.load("t1") is None


def test_a_damaged_checkpoint_means_starting_over(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").write_bytes(b"\x08\0\0\0\0\0\0\0notjson!")
    assert Checkpoint(tmp_path / "checkpoint").load("t1") is None


def test_a_checkpoint_is_due_after_its_interval(tmp_path: Path) -> None:
    now = [0.0]
    checkpoint = Checkpoint(tmp_path / "checkpoint", every_s=5.0, clock=lambda: now[0])
    now[0] = 4.9
    assert not checkpoint.due()
    now[0] = 5.0
    assert checkpoint.due()


def test_attempts_are_counted_over_restarts_and_the_third_is_not_made(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.accept(task("t1"))
    assert journal.begin(0)
    journal.crashed("killed")
    journal = reopened(journal, tmp_path)
    assert journal.begin(0)
    journal = reopened(journal, tmp_path)

    assert not journal.begin(0)
    assert (present(journal.entry).attempts, present(journal.entry).problem) == (2, "killed")
    # Another task has two of its own.
    journal.accept(task("t2"))
    assert journal.begin(0)
    journal.close()


def test_an_attempt_that_got_further_or_ended_in_good_order_does_not_count(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.accept(task("t1"))
    assert [journal.begin(0), journal.begin(0), journal.begin(0)] == [True, True, False]
    # A checkpoint of the last attempt was found.
    assert [journal.begin(5), journal.begin(5)] == [True, True]
    journal.excuse()

    assert [journal.begin(5), journal.begin(5)] == [True, False]
    journal.close()


def test_a_checkpoint_says_its_step_to_its_task_only(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / "checkpoint")
    assert checkpoint.step("t1") == 0
    checkpoint.save("t1", 7, 0.5, {"w": np.zeros(2, np.float32)})

    assert (checkpoint.step("t1"), checkpoint.step("t2")) == (7, 0)
