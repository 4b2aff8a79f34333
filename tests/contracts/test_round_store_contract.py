"""What every round store must keep, tried on the memory twin, on SQLite and on PostgreSQL."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from fedwright.protocol.blobs import make_ref
from fedwright.protocol.errors import RoundError
from fedwright.protocol.messages import Recipe, Stats, Task, Update
from fedwright.server_runtime.methods.base import Assignment
from fedwright.server_runtime.rounds.store.base import (
    Closed,
    Planned,
    Position,
    Remnant,
    Reply,
    RoundStore,
    RunRecord,
    evaluation_after,
)
from fedwright.server_runtime.rounds.store.device_record import DeviceRecord
from fedwright.server_runtime.rounds.store.memory import MemoryRoundStore
from fedwright.server_runtime.rounds.store.sqlite import SqliteRoundStore
from fedwright.server_runtime.run_folder.folder import RunFolder
from fedwright.server_runtime.run_folder.rounds import claim_rounds
from fedwright.server_runtime.spec import ModelSpec, Objective, Structure
from helpers.postgres import PostgresServer, running_postgres
from helpers.present import present

SPEC = ModelSpec("cnn", (1, 8, 8), 10, sizes=(("conv1", 4),))
RECIPE = Recipe(batch=8, learning_rate=0.1, seed=3)


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with running_postgres() as server:
        yield server


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RoundStore]:
    if request.param == "memory":
        yield MemoryRoundStore()
        return
    url = request.getfixturevalue("postgres").url if request.param == "postgres" else None
    with claim_rounds(RunFolder(tmp_path), url) as claim:
        yield claim.store


def planned(device: str, task: str) -> Planned:
    assignment = Assignment(Structure(SPEC, Objective(proximal=0.1, teacher=SPEC)), RECIPE)
    ref = make_ref(b"weights", inline=False)
    message = Task(task, "boot", "run", 1, ref, ref, RECIPE, assignment.returns, deadline_s=5.0)
    return Planned(device, message, assignment)


def update(task: str) -> Update:
    return Update(
        task, 1, Stats(samples=3, steps=1, train_s=0.1, cpu_s=0.1, peak_rss_bytes=1), make_ref(b"delta", inline=False)
    )


def test_a_run_is_recorded_once(store: RoundStore) -> None:
    record = RunRecord("first", "[run]\n", SPEC)
    assert store.run() is None
    store.save_run(record)

    assert store.run() == record
    with pytest.raises(RoundError, match="already holds run first"):
        store.save_run(RunRecord("second", "", SPEC))


def test_more_of_a_run_can_be_recorded_but_no_other_run(store: RoundStore) -> None:
    born = RunRecord("first", "[run]\n", None, identity="abc", kind="served", rounds=2)
    with pytest.raises(RoundError, match="holds no run"):
        store.update_run(born)
    store.save_run(born)
    store.update_run(replace(born, spec=SPEC, rounds=20))

    assert store.run() == replace(born, spec=SPEC, rounds=20)
    with pytest.raises(RoundError, match="this store holds run first; use another folder for run first"):
        store.update_run(replace(born, identity="another"))


def test_a_plan_comes_back_as_it_was_saved_and_cannot_be_replaced(store: RoundStore) -> None:
    plan = [planned("b", "t2"), planned("a", "t1")]
    store.save_plan(Position(1, 0), plan)

    assert store.plan(Position(1, 0)) == plan
    assert store.plan(Position(1, 1)) is None
    with pytest.raises(RoundError, match="round 1 stage 0 is planned already"):
        store.save_plan(Position(1, 0), [])


def test_notes_are_kept_with_the_plan(store: RoundStore) -> None:
    store.save_plan(Position(1, 0), [planned("a", "t1")], notes=b"widths")
    store.save_plan(Position(1, 1), [])

    assert store.notes(Position(1, 0)) == b"widths"
    assert store.notes(Position(1, 1)) == b""
    assert store.notes(Position(7, 0)) == b""


def test_an_empty_plan_is_a_plan(store: RoundStore) -> None:
    store.save_plan(Position(1, 0), [])
    assert store.plan(Position(1, 0)) == []


def test_tasks_can_be_added_at_the_end_of_a_plan(store: RoundStore) -> None:
    plan = [planned("b", "t2"), planned("a", "t1")]
    more = [planned("b", "t4"), planned("a", "t3")]
    store.save_plan(Position(1, 0), plan, notes=b"widths")
    store.extend_plan(Position(1, 0), more)

    assert store.plan(Position(1, 0)) == plan + more
    assert store.notes(Position(1, 0)) == b"widths"
    assert store.is_open("t3")


def test_the_first_reply_of_a_task_stands(store: RoundStore) -> None:
    store.save_plan(Position(1, 0), [planned("a", "t1")])
    first = Reply("t1", "update", update=update("t1"))

    assert store.save_reply(first) is True
    assert store.save_reply(Reply("t1", "refused", detail="too late")) is False
    assert store.replies(Position(1, 0)) == {"t1": first}
    assert store.reply("t1") == first
    assert store.reply("t2") is None


def test_replies_belong_to_their_stage(store: RoundStore) -> None:
    store.save_plan(Position(1, 0), [planned("a", "t1")])
    store.save_plan(Position(1, 1), [planned("a", "t2")])
    store.save_reply(Reply("t2", "late", detail="slow"))

    assert store.replies(Position(1, 0)) == {}
    assert store.replies(Position(1, 1)) == {"t2": Reply("t2", "late", detail="slow")}


def test_a_task_is_open_from_its_plan_to_its_reply(store: RoundStore) -> None:
    assert not store.is_open("t1")
    store.save_plan(Position(1, 0), [planned("a", "t1")])
    assert store.is_open("t1")
    store.save_reply(Reply("t1", "refused", detail="no"))
    assert not store.is_open("t1")


def test_pending_are_open_tasks_and_updates_that_are_in_no_closed_stage(
    store: RoundStore,
) -> None:
    store.save_plan(Position(1, 0), [planned("a", "t1"), planned("b", "t2"), planned("c", "t3")])
    store.save_plan(Position(1, 1), [planned("d", "t4")])
    for task in ("t3", "t1"):
        store.save_reply(Reply(task, "update", update=update(task)))
    store.save_reply(Reply("t4", "refused", detail="no"))
    assert [(p.task.task, r and r.outcome) for p, r in store.pending()] == [
        ("t2", None),
        ("t3", "update"),
        ("t1", "update"),
    ]

    store.close_stage(Closed(Position(1, 2), "state", {}, absorbed=("t3",)))
    assert [p.task.task for p, _ in store.pending()] == ["t2", "t1"]


def test_closed_stages_come_back_in_order(store: RoundStore) -> None:
    stages = [Closed(Position(1, 0), "aa", {}), Closed(Position(1, 1), "bb", {"loss": 0.5}, absorbed=("t1", "t2"))]
    for closed in stages:
        store.close_stage(closed)
    assert store.closed() == stages


def test_sqlite_keeps_everything_over_a_restart(tmp_path: Path) -> None:
    first = SqliteRoundStore(tmp_path / "rounds.sqlite")
    first.save_run(RunRecord("run", "text", SPEC))
    first.save_plan(Position(1, 0), [planned("a", "t1")])
    first.save_reply(Reply("t1", "update", update=update("t1")))
    first.close_stage(Closed(Position(1, 0), "state", {"loss": 1.0}))
    # No close: a killed process does not say good-bye either.
    second = SqliteRoundStore(tmp_path / "rounds.sqlite")

    assert second.run() == RunRecord("run", "text", SPEC)
    assert second.plan(Position(1, 0)) == [planned("a", "t1")]
    assert second.replies(Position(1, 0))["t1"].update == update("t1")
    assert second.closed()[-1].metrics == {"loss": 1.0}
    first.close()
    second.close()


def test_a_smaller_task_joins_the_plan_together_with_the_refusal(store: RoundStore) -> None:
    store.save_plan(Position(1, 0), [planned("a", "t1"), planned("b", "t2")])

    assert store.save_reply(Reply("t1", "refused", detail="no"), retry=planned("a", "t3")) is True
    assert store.save_reply(Reply("t1", "refused", detail="no"), retry=planned("a", "t4")) is False
    assert [entry.task.task for entry in present(store.plan(Position(1, 0)))] == ["t1", "t2", "t3"]
    assert store.is_open("t3")
    store.save_reply(Reply("t3", "update", update=update("t3")))
    assert store.replies(Position(1, 0)).keys() == {"t1", "t3"}


def test_replies_of_a_pool_are_kept_all_or_none(store: RoundStore) -> None:
    store.save_plan(Position(1, 0), [planned("a", "t1"), planned("b", "t2"), planned("c", "t3")])
    store.save_reply(Reply("t3", "refused", detail="no"))

    with pytest.raises(RoundError, match="already"):
        store.save_replies([Reply("t1", "update", update=update("t1")), Reply("t3", "update", update=update("t3"))])
    assert set(store.replies(Position(1, 0))) == {"t3"}
    store.save_replies([Reply("t1", "update", update=update("t1")), Reply("t2", "rejected", detail="bad")])
    assert {task: reply.outcome for task, reply in store.replies(Position(1, 0)).items()} == {
        "t1": "update",
        "t2": "rejected",
        "t3": "refused",
    }
    assert not store.is_open("t1")


def test_an_update_is_kept_without_the_bytes_that_are_a_blob(store: RoundStore) -> None:
    store.save_plan(Position(1, 0), [planned("a", "t1"), planned("b", "t2")])
    inline = make_ref(b"delta")
    store.save_reply(Reply("t1", "update", update=structs.replace(update("t1"), tensors=inline)))
    store.save_replies([Reply("t2", "update", update=structs.replace(update("t2"), tensors=inline))])

    assert inline.inline == b"delta"
    assert [present(reply.update).tensors for reply in store.replies(Position(1, 0)).values()] == [
        structs.replace(inline, inline=None)
    ] * 2


def fill(store: RoundStore) -> None:
    """Two rounds: an update, a refusal and an open task in each, and a measurement after the first."""
    for number in (1, 2):
        names = [f"{device}{number}" for device in "abc"]
        store.save_plan(Position(number, 0), [planned(name[0], name) for name in names], notes=b"notes")
        store.save_reply(Reply(names[0], "update", update=update(names[0])))
        store.save_reply(Reply(names[1], "refused", detail="no"))
        store.close_stage(Closed(Position(number, 0), f"state {number}", {}, absorbed=(names[0],)))
    store.save_plan(evaluation_after(1), [planned("a", "measured"), planned("b", "lost")])
    store.save_reply(Reply("measured", "update", update=update("measured")))


def test_ended_are_tasks_that_no_round_to_come_needs(store: RoundStore) -> None:
    fill(store)
    store.save_plan(Position(3, 0), [planned("a", "a3")])
    store.save_reply(Reply("a3", "update", update=update("a3")))

    every = [(one.position, one.planned.task.task, one.reply and one.reply.outcome) for one in store.ended()]
    assert every == [
        (Position(1, 0), "a1", "update"),
        (Position(1, 0), "b1", "refused"),
        (evaluation_after(1), "measured", "update"),
        (evaluation_after(1), "lost", None),
        (Position(2, 0), "a2", "update"),
        (Position(2, 0), "b2", "refused"),
    ]
    assert [one.planned.task.task for one in store.ended(before=2)] == ["a1", "b1", "measured", "lost"]


def test_what_is_forgotten_is_gone_but_for_what_stays_of_each_device(store: RoundStore) -> None:
    fill(store)
    remnant = Remnant(DeviceRecord("a", rounds=1, answers=1), 1, Reply("a1", "update"))
    store.forget(["a1", "b1", "measured", "lost"], {"a": remnant})

    assert store.remnants() == {"a": remnant}
    assert [one.task.task for one in present(store.plan(Position(1, 0)))] == ["c1"]
    assert store.plan(evaluation_after(1)) is None
    assert store.notes(Position(2, 0)) == b"notes"
    assert store.reply("b1") is None
    # A device that asks again what became of its last update hears the same word as before.
    assert store.reply("a1") == Reply("a1", "update")
    assert not store.is_open("lost")
    assert [planned.task.task for planned, _ in store.pending()] == ["c1", "c2"]
    assert [(closed.state, closed.absorbed) for closed in store.closed()] == [("state 1", ()), ("state 2", ("a2",))]


def test_an_update_that_was_taken_can_be_rejected_after_all(store: Any) -> None:
    store.save_plan(Position(1, 0), [planned("a", "ta"), planned("b", "tb")])
    for task in ("ta", "tb"):
        store.save_reply(Reply(task, "update", update=update(task)))
    store.reject(["ta"], "a: it lies")

    assert store.replies(Position(1, 0)) == {
        "ta": Reply("ta", "rejected", detail="a: it lies"),
        "tb": Reply("tb", "update", update=update("tb")),
    }
    assert [entry.device for entry, _ in store.pending()] == ["b"]


def test_rolling_back_forgets_what_came_later_and_ends_what_is_pending(store: Any) -> None:
    for number, task in enumerate(("t1", "t2", "t3"), 1):
        store.save_plan(Position(number, 0), [planned("a", task), planned("b", f"open{number}")], notes=b"note")
        store.save_reply(Reply(task, "update", update=update(task)))
        store.close_stage(Closed(Position(number, 0), f"state{number}", {"x": 1.0}, absorbed=(task,)))
    store.save_plan(evaluation_after(1), [planned("a", "measured")])
    store.roll_back(1)

    assert [closed.state for closed in store.closed()] == ["state1"]
    assert (store.plan(Position(2, 0)), store.plan(evaluation_after(1)), store.notes(Position(2, 0))) == (
        None,
        None,
        b"",
    )
    assert (store.reply("t1").outcome, store.reply("t2"), store.pending()) == ("update", None, [])
    assert store.reply("open1") == Reply("open1", "late", detail="the run was rolled back to round 1")
    store.save_plan(Position(2, 0), [planned("a", "again")])


def test_remnants_of_some_devices_are_those_alone(store: RoundStore) -> None:
    kept = {device: Remnant(DeviceRecord(device)) for device in ("d-0", "d-1", "d-2")}
    store.save_run(RunRecord("run", "", SPEC))
    store.forget([], kept)

    assert store.remnants(["d-2", "d-0", "d-9"]) == {"d-0": kept["d-0"], "d-2": kept["d-2"]}
    assert store.remnants() == kept
