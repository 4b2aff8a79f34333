"""A device's own account of what its tasks with noise told: that of the library, and no server passes it."""

from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from fedwright.device_runtime.owner_rules import OwnerRules
from fedwright.device_runtime.policy import Policy
from fedwright.device_runtime.private_budget import DELTA, ORDERS, epsilon_of, told_by
from fedwright.protocol.blobs import make_ref
from fedwright.protocol.errors import PolicyRefused
from fedwright.protocol.link.memory import MemoryBroker
from fedwright.protocol.messages import Effort, Hiding, Recipe, Returns, SumTerms, Task
from helpers.fleet import Running

SAMPLES = 1000


def task(name: str = "t", noise: float = 1.0, **recipe: Any) -> Task:
    ref, asked = make_ref(b"w"), Recipe(**{"batch": 50, "learning_rate": 0.1, "seed": 1, **recipe})
    return Task(name, "b", "r", 1, ref, ref, asked, Returns(), deadline_s=9.0, privacy=Hiding(1.0, noise))


def summed(noise: float) -> Task:
    terms = SumTerms("g", 3, 8.0, Effort(50), clip_norm=1.0, noise_multiplier=noise)
    return structs.replace(task(), privacy=None, sum=terms)


@pytest.mark.parametrize(("noise", "batch", "steps"), [(0.6, 50, 200), (1.0, 32, 1000), (4.0, 500, 30), (1.5, 2000, 3)])
def test_it_is_the_bound_of_the_library(noise: float, batch: int, steps: int) -> None:
    import dp_accounting
    from dp_accounting import rdp

    library = rdp.RdpAccountant(list(ORDERS))
    ratio, gaussian = min(1.0, batch / SAMPLES), dp_accounting.GaussianDpEvent(noise)
    library.compose(gaussian if ratio == 1 else dp_accounting.PoissonSampledDpEvent(ratio, gaussian), steps)

    found = epsilon_of(told_by(task(noise=noise, batch=batch, steps=steps), SAMPLES))
    assert found == pytest.approx(library.get_epsilon(DELTA), rel=1e-6)


def test_epochs_are_counted_in_steps_and_sums_once() -> None:
    assert told_by(task(epochs=2), 999) == told_by(task(steps=40), 999)
    assert told_by(summed(3.0), SAMPLES) == told_by(task(noise=3.0, batch=SAMPLES, steps=1), SAMPLES)
    assert epsilon_of([0.0] * len(ORDERS)) == 0.0


def check(folder: Path, one: Task, **policy: Any) -> None:
    OwnerRules(Policy(**policy), folder).check(one, 0, missing_bytes=0, samples=SAMPLES, taken=one.task)


@pytest.mark.parametrize(
    "greedy", [task(steps=10**6), task(noise=1e-3, steps=1), summed(0.1)], ids=["steps", "noise", "sum"]
)
def test_one_task_of_a_server_that_cheats_does_not_pass_it(tmp_path: Path, greedy: Task) -> None:
    """Of a limit on tasks it would have been the first."""
    check(tmp_path / "tasks", greedy, private_tasks=1)
    with pytest.raises(PolicyRefused, match="tells no more of a sample than epsilon 8; 0 is told"):
        check(tmp_path / "budget", greedy, private_epsilon=8.0)


def test_tasks_add_up_over_restarts_and_the_same_one_counts_once(tmp_path: Path) -> None:
    each = epsilon_of(told_by(task(), SAMPLES))
    for name in ("t1", "t1", "t2"):
        check(tmp_path, task(name), private_epsilon=1.6 * each)
    with pytest.raises(PolicyRefused, match="is told, and with this task"):
        check(tmp_path, task("t9", steps=2000), private_epsilon=1.6 * each)
    check(tmp_path, structs.replace(task("plain"), privacy=None), private_epsilon=1.6 * each)


def test_classes_alone_are_too_few_samples_to_count_by(tmp_path: Path) -> None:
    with pytest.raises(PolicyRefused, match="trains no classes alone"):
        check(tmp_path, task(classes=[1]), private_epsilon=100.0)


@pytest.mark.parametrize("policy", [{"private_tasks": 1}, {"private_epsilon": 15.0}], ids=["tasks", "epsilon"])
def test_a_task_that_is_sent_once_more_after_others_counts_once_more(tmp_path: Path, policy: dict[str, Any]) -> None:
    """It is done anew, with noise of its own; what it is called is the server's choice."""
    running = Running(MemoryBroker(), "d", tmp_path, owner=OwnerRules(Policy(**policy), tmp_path / "owner"))
    running.stop()
    found, journal = running.resources, running.journal
    greedy = task(steps=10, noise=1.5, batch=SAMPLES)
    journal.accept(greedy)
    for _ in range(3):
        # As it is looked at when blobs come, or the agent starts anew.
        found.check(greedy, 0, [])
    journal.accept(structs.replace(task("plain"), privacy=None))
    journal.accept(greedy)
    with pytest.raises(PolicyRefused, match=r"has done 1 tasks with noise|is told, and with this task"):
        found.check(greedy, 0, [])
