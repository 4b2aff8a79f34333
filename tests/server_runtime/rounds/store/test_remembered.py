"""What one server remembers of its rounds is what another process finds on disk."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from fedwright.protocol.blobs import make_ref
from fedwright.protocol.messages import Recipe, Stats, Task, Update
from fedwright.server_runtime.methods.base import Assignment
from fedwright.server_runtime.rounds.store.base import Closed, Planned, Position, Reply, RunRecord
from fedwright.server_runtime.rounds.store.remembered import RememberedRounds
from fedwright.server_runtime.rounds.store.sqlite import SqliteRoundStore
from fedwright.server_runtime.spec import ModelSpec, Structure

SPEC = ModelSpec("mlp", (64,), 10)
RECIPE = Recipe(batch=8, learning_rate=0.1, seed=3)
FIRST, SECOND = Position(1, 0), Position(2, 0)


def planned(task: str, number: int = 1) -> Planned:
    assignment, ref = Assignment(Structure(SPEC), RECIPE), make_ref(b"weights", inline=False)
    message = Task(task, "boot", "run", number, ref, ref, RECIPE, assignment.returns, deadline_s=5.0)
    return Planned(f"device-{task}", message, assignment)


def answered(task: str) -> Reply:
    stats = Stats(samples=3, steps=1, train_s=0.1, cpu_s=0.1, peak_rss_bytes=1)
    return Reply(task, "update", update=Update(task, 1, stats, make_ref(b"delta")))


def close_first(store: RememberedRounds) -> None:
    store.close_stage(Closed(FIRST, "state", {"loss": 1.0}, absorbed=("b", "a")))


Act = Callable[[RememberedRounds], object]


def reply_a(store: RememberedRounds) -> None:
    store.save_reply(answered("a"))


def reply_all(store: RememberedRounds) -> None:
    store.save_replies([answered("b"), answered("a")])


def plan_second(store: RememberedRounds) -> None:
    store.save_plan(SECOND, [planned("d", 2)])


ACTS: dict[str, tuple[Act, ...]] = {
    "a reply": (lambda store: store.save_reply(answered("b")),),
    "a second reply": (reply_a, lambda store: store.save_reply(Reply("a", "late"))),
    "a retry": (lambda store: store.save_reply(Reply("a", "refused"), retry=planned("c")),),
    "replies of a pool": (reply_all,),
    "a longer plan": (lambda store: store.extend_plan(FIRST, [planned("c")]),),
    "a rejection": (reply_a, lambda store: store.reject(["a"], "too large")),
    "an ended sum": (reply_a, lambda store: store.end_sum("s", [Reply("a", "rejected")])),
    "a closed stage": (reply_all, close_first),
    "forgotten tasks": (reply_a, close_first, lambda store: store.forget(["a"], {})),
    "the next round": (close_first, plan_second),
    "a rollback": (close_first, plan_second, lambda store: store.roll_back(1)),
}


@pytest.mark.parametrize("acts", ACTS.values(), ids=ACTS.keys())
def test_memory_and_disk_agree_after(acts: tuple[Act, ...], tmp_path: Path) -> None:
    with closing(RememberedRounds(tmp_path / "rounds.sqlite")) as store:
        store.save_run(RunRecord("run", "", SPEC))
        store.save_plan(FIRST, [planned("b"), planned("a")])
        assert store.closed() == []
        for act in acts:
            act(store)
        with closing(SqliteRoundStore(tmp_path / "rounds.sqlite")) as disk:
            for position in (FIRST, SECOND):
                assert store.plan(position) == disk.plan(position)
                assert list(store.replies(position).items()) == list(disk.replies(position).items())
            assert store.closed() == disk.closed()
