"""An edge's tasks: pools that are complete, late, damaged or recalled, over a store that outlives it."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from fedwright.protocol import codec
from fedwright.protocol.blobs import make_ref
from fedwright.protocol.messages import Ack, Refusal, Shown, Update
from fedwright.server_runtime.edge.pooled_update import Plain, PooledReply, Reader
from fedwright.server_runtime.edge.task_rows import PATIENCE_RATIO, PEERS_RATIO, RESEND_S, TaskRows
from helpers.edge_tasks import DEADLINE_S, EdgeTasks
from helpers.present import present


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Any]:
    made = EdgeTasks(tmp_path)
    yield made
    made.store.close()


def test_a_pool_goes_up_when_all_have_answered(bench: Any) -> None:
    tasks = bench.plan()
    bench.take(tasks)
    for device, value in (("c", 4.0), ("a", 1.0)):
        bench.answer(device, tasks[device], value, samples=10)
        bench.rows.close_pools()
        assert bench.rows.due_updates() == []
    bench.answer("b", tasks["b"], 7.0, samples=20)
    bench.rows.close_pools()

    [update] = bench.rows.due_updates()
    assert [part.task for part in update.parts] == [tasks[device].task for device in "abc"]
    assert (bench.value(update), update.stats.samples) == (4.75, 40)
    assert bench.rows.due_answers() == []


def test_what_is_not_acknowledged_is_repeated_also_after_a_restart(bench: Any) -> None:
    tasks = bench.plan()
    bench.take(tasks)
    for device in tasks:
        bench.answer(device, tasks[device], 1.0)
    bench.rows.close_pools()
    [first] = bench.rows.due_updates()
    assert bench.rows.due_updates() == []
    bench.now_s += RESEND_S
    assert bench.rows.due_updates() == [first]

    bench.reopen()
    bench.rows.close_pools()
    assert bench.rows.due_updates() == [first]
    spent = [name for task in tasks.values() for name in bench.ack(task)]
    assert {first.tensors.sha256, tasks["a"].weights.sha256} <= set(spent)
    assert bench.rows.due_updates() == []
    bench.now_s += RESEND_S
    assert bench.rows.due_updates() == []


def test_a_pool_does_not_wait_for_a_straggler_beyond_its_time(bench: Any) -> None:
    tasks = bench.plan()
    bench.take(tasks)
    bench.answer("a", tasks["a"], 1.0)
    bench.answer("b", tasks["b"], 3.0)
    bench.now_s += PATIENCE_RATIO * DEADLINE_S - 1
    bench.rows.close_pools()
    assert bench.rows.due_updates() == []
    bench.now_s += 1
    bench.rows.close_pools()
    [update] = bench.rows.due_updates()
    assert bench.value(update) == 2.0

    # The straggler's own answer follows by itself.
    bench.answer("c", tasks["c"], 9.0)
    bench.rows.close_pools()
    assert [row.device for row in bench.rows.due_answers()] == ["c"]


def test_pools_that_go_up_together_do_not_wait_for_one_that_nobody_answers(bench: Any) -> None:
    class Together(Plain):
        together = True

    bench.rows = TaskRows("edge", bench.store, bench.blobs, grouping=Together(), clock=lambda: bench.now_s)
    tasks, silent = bench.plan(1), bench.plan(2)
    bench.take(tasks)
    bench.take(silent)
    for device in tasks:
        bench.answer(device, tasks[device], 1.0)
    bench.rows.close_pools()
    assert bench.rows.due_updates() == []
    bench.now_s += PATIENCE_RATIO * DEADLINE_S
    bench.rows.close_pools()

    assert [update.round for update in bench.rows.due_updates()] == [1]


def test_the_first_task_of_another_run_of_the_same_name_ends_all_of_the_one_before(bench: EdgeTasks) -> None:
    before, after = bench.plan(1, identity="aa"), bench.plan(1, identity="bb")
    for tasks, value in ((before, 1.0), (after, 3.0)):
        bench.take(tasks)
        for device in tasks:
            bench.answer(device, tasks[device], value)
        bench.rows.close_pools()
        bench.now_s += RESEND_S
        assert [bench.value(update) for update in bench.rows.due_updates()] == [value]
    assert {row.id for row in bench.store.rows()} == {task.task for task in after.values()}


def test_a_refusal_goes_up_and_is_not_waited_for(bench: Any) -> None:
    tasks = bench.plan()
    bench.take(tasks)
    bench.answer("a", tasks["a"], 1.0)
    bench.answer("b", tasks["b"], 3.0)
    bench.say("c", Refusal(tasks["c"].task, "over_budget", "no memory"))
    bench.rows.close_pools()

    [update] = bench.rows.due_updates()
    assert len(update.parts) == 2
    assert [row.device for row in bench.rows.due_answers()] == ["c"]


def test_a_damaged_update_goes_up_by_itself_for_the_host_to_judge(bench: Any, caplog: pytest.LogCaptureFixture) -> None:
    tasks = bench.plan()
    bench.take(tasks)
    bench.answer("a", tasks["a"], 1.0)
    bench.answer("b", tasks["b"], 3.0)
    bench.answer("c", tasks["c"], np.nan)
    bench.rows.close_pools()

    [update] = bench.rows.due_updates()
    assert bench.value(update) == 2.0
    assert [row.device for row in bench.rows.due_answers()] == ["c"]
    assert "not finite" in caplog.text


def test_a_recalled_task_is_taken_out_of_what_was_put_together(bench: Any) -> None:
    tasks = bench.plan()
    bench.take(tasks)
    for device, value in (("a", 1.0), ("b", 3.0), ("c", 8.0)):
        bench.answer(device, tasks[device], value)
    bench.rows.close_pools()
    assert bench.value(bench.rows.due_updates()[0]) == 4.0

    bench.rows.recall(tasks["c"].task)
    bench.reopen()
    bench.rows.close_pools()
    [update] = bench.rows.due_updates()
    assert bench.value(update) == 2.0
    # The host tells the device what became of it when its own answer comes.
    assert [row.device for row in bench.rows.due_answers()] == ["c"]


def test_a_task_that_was_recalled_before_its_answer_is_not_waited_for(bench: Any) -> None:
    tasks = bench.plan()
    bench.take(tasks)
    bench.answer("a", tasks["a"], 1.0)
    bench.answer("b", tasks["b"], 3.0)
    bench.rows.recall(tasks["c"].task)
    bench.rows.close_pools()

    assert len(bench.rows.due_updates()[0].parts) == 2


def test_a_device_that_gets_another_task_is_not_waited_for(bench: Any) -> None:
    tasks = bench.plan()
    bench.take(tasks)
    bench.answer("a", tasks["a"], 1.0)
    bench.answer("b", tasks["b"], 3.0)
    later = bench.plan(2)["c"]

    assert bench.rows.give_up("c", tasks["c"].task) == []
    assert bench.rows.give_up("c", later.task) == [tasks["c"].task]
    bench.rows.close_pools()
    assert len(bench.rows.due_updates()[0].parts) == 2


def test_an_answer_before_its_task_comes_with_a_device_from_another_edge(bench: Any) -> None:
    task = bench.plan()["a"]
    bench.answer("a", task, 1.0)

    assert [row.device for row in bench.rows.due_answers()] == ["a"]


def test_one_device_does_not_answer_for_another(bench: Any, caplog: pytest.LogCaptureFixture) -> None:
    tasks = bench.plan()
    bench.take(tasks)

    assert bench.answer("b", tasks["a"], 1.0) is None
    assert "answers what it was not asked" in caplog.text


def test_a_device_that_asks_again_gets_the_hosts_word_again(bench: Any) -> None:
    tasks = bench.plan()
    bench.take(tasks)
    bench.answer("a", tasks["a"], 1.0)
    bench.ack(tasks["a"])
    bench.reopen()

    row = bench.answer("a", tasks["a"], 1.0)
    assert row.state == "done"
    assert codec.decode(row.answer).body == Ack(tasks["a"].task)


def test_rounds_that_are_over_are_forgotten_when_the_next_begins(bench: Any) -> None:
    for number in (1, 2, 3):
        tasks = bench.plan(number)
        bench.take(tasks)
        for device in tasks:
            bench.answer(device, tasks[device], float(number))
        bench.rows.close_pools()
        bench.rows.due_updates()
        for task in tasks.values():
            bench.ack(task)

    assert {row.task.round for row in bench.store.rows()} == {3}
    assert bench.store.bundles() == {}


class Linking(Plain):
    """One mean for each pool, when other edges have shown something."""

    together = True

    def __init__(self) -> None:
        self.elsewhere: dict[str, bytes] | None = None

    def show(self, pools: dict[str, list[PooledReply]], reader: Reader) -> bytes:
        return "|".join(sorted(member.device for members in pools.values() for member in members)).encode()

    def group(
        self, pools: dict[str, list[PooledReply]], reader: Reader, elsewhere: Mapping[str, bytes]
    ) -> list[Update]:
        self.elsewhere = dict(elsewhere)
        return super().group(pools, reader, elsewhere)


@pytest.fixture
def linking(tmp_path: Path) -> Iterator[Any]:
    """Tasks whose devices' last layers are linked with those behind another edge."""
    made = EdgeTasks(tmp_path, grouping=Linking(), edges={"a": "edge", "b": "edge", "c": "other"})
    yield made
    made.store.close()


def test_clusters_are_shown_and_those_of_others_waited_for(linking: Any) -> None:
    tasks = linking.plan()
    linking.take({device: tasks[device] for device in "ab"})
    for device in "ab":
        assert linking.rows.due_shown() == []
        linking.answer(device, tasks[device], 1.0)
        linking.rows.close_pools()

    [shown] = linking.rows.due_shown()
    assert (shown.edge, shown.clusters.inline) == ("edge", b"a|b")
    assert linking.rows.due_updates() == linking.rows.due_shown() == []
    linking.now_s += RESEND_S
    linking.rows.close_pools()
    assert linking.rows.due_shown() == [shown]

    linking.rows.sharing.take(Shown(shown.stage, "other", make_ref(b"theirs")))
    linking.rows.close_pools()
    [update] = linking.rows.due_updates()
    assert len(update.parts) == 2
    assert linking.grouping.elsewhere == {"other": b"theirs"}
    linking.now_s += RESEND_S
    assert linking.rows.due_shown() == []


def test_others_are_waited_for_a_little_longer_than_devices_and_no_longer(linking: Any) -> None:
    tasks = linking.plan()
    linking.take({device: tasks[device] for device in "ab"})
    linking.answer("a", tasks["a"], 1.0)
    linking.now_s += PATIENCE_RATIO * DEADLINE_S
    linking.rows.close_pools()
    [shown] = linking.rows.due_shown()
    assert (shown.clusters.inline, linking.rows.due_updates()) == (b"a", [])

    linking.now_s += (PEERS_RATIO - PATIENCE_RATIO) * DEADLINE_S
    linking.rows.close_pools()
    [update] = linking.rows.due_updates()
    assert [part.task for part in update.parts] == [tasks["a"].task]
    assert linking.grouping.elsewhere == {}


def test_a_killed_edge_shows_the_same_again_and_does_not_ask_for_what_it_has(linking: Any) -> None:
    linking.answered("ab")
    [shown] = linking.rows.due_shown()
    linking.rows.sharing.take(Shown(shown.stage, "other", make_ref(b"theirs")))
    linking.reopen()

    assert linking.rows.due_shown() == [shown]
    linking.rows.close_pools()
    assert len(linking.rows.due_updates()) == 1
    assert linking.grouping.elsewhere == {"other": b"theirs"}


def test_what_was_shown_is_shown_anew_without_a_recalled_task(linking: Any) -> None:
    tasks = linking.answered("ab")
    linking.rows.due_shown()
    linking.rows.recall(tasks["b"].task)
    linking.rows.close_pools()

    [shown] = linking.rows.due_shown()
    assert shown.clusters.inline == b"a"


@pytest.mark.parametrize("grouping", [Plain(), Linking()], ids=["no exchange", "no answers"])
def test_an_edge_without_clusters_says_so(linking: Any, grouping: Plain) -> None:
    linking.grouping = grouping
    linking.reopen()
    tasks = linking.plan()
    linking.take({device: tasks[device] for device in "ab"})
    if grouping.together:
        for device in "ab":
            linking.say(device, Refusal(tasks[device].task, "failed", "broken"))
    linking.rows.close_pools()

    [shown] = linking.rows.due_shown()
    assert (shown.stage, shown.clusters) == (tasks["a"].pool.stage, None)
    linking.now_s += RESEND_S
    linking.rows.close_pools()
    assert linking.rows.due_shown() == []


def hostile_pool(bench: EdgeTasks, value: float, samples: int, **terms: Any) -> float:
    """What the mean of two honest devices and a hostile one is, under what the host says in its tasks."""
    tasks = {
        device: structs.replace(task, pool=structs.replace(present(task.pool), **terms))
        for device, task in bench.plan().items()
    }
    bench.take(tasks)
    for device in "ab":
        bench.answer(device, tasks[device], 1.0)
    bench.answer("c", tasks["c"], value, samples=samples)
    bench.rows.close_pools()
    [update] = bench.rows.due_updates()
    return bench.value(update)


def test_a_claim_of_samples_counts_at_an_edge_as_far_as_the_host_lets_it(bench: EdgeTasks) -> None:
    # Ten samples each of 1 and twenty of 3.
    assert hostile_pool(bench, 3.0, 2**53, most_samples=20) == 2.0


def test_a_large_change_is_held_to_the_median_of_its_pool(bench: EdgeTasks) -> None:
    # At most twice the median of 1: (1 + 1 + 2) / 3.
    assert hostile_pool(bench, 1000.0, 10, norm_factor=2.0) == pytest.approx(4 / 3, abs=1e-5)


def test_pools_say_for_how_much_each_device_may_count(bench: EdgeTasks) -> None:
    plan = bench.planned(most_samples={"a": 7, "b": 70, "c": None}, norm_factor=5.0)
    assert {device: (p.most_samples, p.norm_factor) for device, p in plan.items()} == {
        "a": (7, 5.0),
        "b": (70, 5.0),
        "c": (None, 5.0),
    }
    assert len({pool.key for pool in plan.values()}) == 1
