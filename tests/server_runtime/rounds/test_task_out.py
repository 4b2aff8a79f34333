"""Where the time of a task went."""

from typing import Any, cast

import pytest

from fedwright.protocol.messages import Stats
from fedwright.server_runtime.rounds.task_out import TaskOut


def stats(task_s: float) -> Stats:
    return Stats(samples=1, steps=1, train_s=task_s, cpu_s=0.0, peak_rss_bytes=0, task_s=task_s)


@pytest.mark.parametrize(
    ("begun_s", "told_s", "expected"),
    [
        (12.0, 19.0, {"waiting": 2.0, "down": 2.0, "train": 5.0, "up": 1.0}),
        (14.0, 19.0, {"waiting": 4.0, "down": 0.0, "train": 5.0, "up": 1.0}),
        # It said nothing, or only while it trained: when the way down began nobody knows.
        (None, 19.0, {"unknown": 4.0, "train": 5.0, "up": 1.0}),
        (17.0, 19.0, {"unknown": 4.0, "train": 5.0, "up": 1.0}),
        # A device that claims more time than has gone by is not believed.
        (None, 12.0, {"unknown": 0.0, "train": 2.0, "up": 8.0}),
    ],
    ids=["heard", "heard as it began", "quick", "heard late", "boasting"],
)
def test_spans_add_up_to_the_time_since_it_was_sent(
    begun_s: float | None, told_s: float, expected: dict[str, float]
) -> None:
    out = TaskOut(cast(Any, None), 10.0)
    for now_s in () if begun_s is None else (begun_s, 18.5):
        out.begin(now_s)
    out.tell(told_s)
    out.tell(19.9)

    assert out.spans(stats(5.0), 20.0) == expected
    assert sum(expected.values()) == 10.0
