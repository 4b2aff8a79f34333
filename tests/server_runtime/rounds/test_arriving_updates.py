"""Who announces update after update takes no more of the server's memory than one of them."""

from typing import Any, cast

import pytest

from fedwright.protocol.errors import BadUpdate
from fedwright.protocol.messages import BlobRef, Returns, Stats, SumAnswer, SumAsk, Update
from fedwright.server_runtime.fleet.registry import Registry
from fedwright.server_runtime.fleet.upload_limits import check_size
from fedwright.server_runtime.rounds.arriving_updates import ArrivingUpdates
from fedwright.server_runtime.rounds.questions import MOST_KEPT, Questions
from helpers.fleet import report
from helpers.tiny_artifact import make_artifact

STATS = Stats(samples=1, steps=1, train_s=0.1, cpu_s=0.1, peak_rss_bytes=1)


def test_only_the_last_announcement_of_a_task_counts() -> None:
    arriving = ArrivingUpdates()
    for number in range(1000):
        arriving.add(Update("t", number, STATS), f"blob-{number}")

    assert len(arriving) == 1
    assert arriving.take("blob-998") == []
    assert [update.round for update in arriving.take("blob-999")] == [999]
    assert len(arriving) == 0


def test_two_tasks_may_wait_for_the_same_bytes_and_one_of_them_end() -> None:
    arriving = ArrivingUpdates()
    for task in ("t", "u"):
        arriving.add(Update(task, 1, STATS), "blob")
    arriving.forget("t")

    assert [update.task for update in arriving.take("blob")] == ["u"]
    arriving.forget("u")


def test_a_blob_of_more_pieces_than_its_size_has_is_not_fetched() -> None:
    ref = BlobRef("0" * 64, 2000, 1024, [bytes(32)] * 60_000)

    with pytest.raises(BadUpdate, match="must have 2 chunks, not 60000"):
        check_size(ref, make_artifact().manifest, Returns())


class _Deaf:
    """A channel that sends nothing."""

    def ask(self, device: str, ask: Any) -> None:
        """Nobody hears it."""


def test_answers_to_what_nobody_asked_are_not_kept() -> None:
    registry = Registry()
    for device in ("a", "b"):
        registry.hear(device, "boot", report(), now_s=0.0)
    questions = Questions(cast(Any, _Deaf()), registry)
    questions.ask("a", SumAsk("s", "boot", "mask", "t"))
    for _ in range(500):
        questions.take("a", SumAnswer("s", "mask"))
        questions.take("b", SumAnswer("s", "mask"))

    assert [device for device, _ in questions.answers()] == ["a"] * MOST_KEPT
    questions.take("a", SumAnswer("s", "mask"))
    assert len(questions.answers()) == 1
