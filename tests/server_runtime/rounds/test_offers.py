"""Devices without the memory for their task are offered less, also when the server dies over it."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from msgspec import structs

from fedwright.device_runtime.owner_rules import OwnerRules
from fedwright.device_runtime.policy import Policy
from fedwright.protocol.artifact import Artifact
from fedwright.protocol.errors import OverBudget, PolicyRefused
from fedwright.protocol.link.memory import MemoryBroker
from fedwright.protocol.messages import Hiding, Recipe, Refusal, Returns
from fedwright.protocol.predictor import need_bytes
from fedwright.server_runtime.artifacts.builder import Builder
from fedwright.server_runtime.methods.base import Assignment
from fedwright.server_runtime.rounds import events
from fedwright.server_runtime.rounds.retry import smaller_tasks
from fedwright.server_runtime.rounds.store.base import Position, evaluation_after
from fedwright.server_runtime.spec import ModelSpec, Structure
from helpers.fleet import Running, Server, agents
from helpers.present import present


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker()


def test_a_device_whose_memory_shrinks_is_offered_less_in_the_same_round(
    broker: MemoryBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = {"bytes": 10**9}

    def check(artifact: Artifact, recipe: Recipe) -> None:
        if recipe.batch * 10**8 > free["bytes"]:
            raise OverBudget(recipe.batch * 10**8, free["bytes"])

    def another_program_starts(event: Any) -> None:
        if isinstance(event, events.RoundClosed):
            free["bytes"] = 2 * 10**8

    server = Server(broker, tmp_path, devices=2, rounds=2)
    # A kept trainer was checked already, so this device makes a new one for every task.
    small = Running(broker, "small", tmp_path, check=check)
    monkeypatch.setattr(small.tools.kept, "put", lambda *_, **__: None)
    with agents(broker, tmp_path, "a"):
        server.run(observer=another_program_starts)
    small.stop()

    batches = [
        [
            planned.assignment.recipe.batch
            for planned in present(server.store.plan(Position(number, 0)))
            if planned.device == "small"
        ]
        for number in (1, 2)
    ]
    assert batches == [[8], [8, 4, 2]]
    # The third is the measurement at the end, which was offered in smaller batches too.
    assert [e.round for e in server.seen(events.UpdateTaken) if e.device == "small"] == [1, 2, 2]


@pytest.mark.parametrize(("least", "offered"), [(20, [8, 20]), (10**6, [8])], ids=["a wish", "a wish beyond reason"])
def test_a_device_whose_owner_wants_larger_batches_is_offered_such(
    broker: MemoryBroker, tmp_path: Path, least: int, offered: list[int]
) -> None:
    def check(artifact: Artifact, recipe: Recipe) -> None:
        if recipe.batch < least:
            raise PolicyRefused("least_batch", "learns from more", least=least)

    server = Server(broker, tmp_path, devices=2, rounds=1)
    careful = Running(broker, "careful", tmp_path, check=check)
    with agents(broker, tmp_path, "a"):
        server.run()
    careful.stop()

    plan = present(server.store.plan(Position(1, 0)))
    assert [planned.assignment.recipe.batch for planned in plan if planned.device == "careful"] == offered
    taken = {event.device for event in server.seen(events.UpdateTaken) if not event.evaluation}
    assert taken == ({"a", "careful"} if len(offered) == 2 else {"a"})


def test_a_device_whose_owner_lets_nothing_be_measured_is_asked_for_its_change_alone(
    broker: MemoryBroker, tmp_path: Path
) -> None:
    server = Server(broker, tmp_path, devices=2, rounds=1)
    owner = OwnerRules(Policy(returns=("delta",)), tmp_path)
    careful = Running(broker, "careful", tmp_path, owner=owner)
    with agents(broker, tmp_path, "a"):
        server.run()
    careful.stop()

    plan, replies = present(server.store.plan(Position(1, 0))), server.store.replies(Position(1, 0))
    offered = [planned for planned in plan if planned.device == "careful"]
    assert [planned.task.returns.evaluate for planned in offered] == [True, False]
    assert [replies[planned.task.task].outcome for planned in offered] == ["refused", "update"]


class Halving:
    """A method whose smaller models go on until one sample is a batch; stands for widths."""

    def shrink(self, device: str, assignment: Assignment, refusal: Refusal) -> Assignment | None:
        """See Method."""
        batch = assignment.recipe.batch // 2
        return replace(assignment, recipe=structs.replace(assignment.recipe, batch=batch)) if batch else None

    def emit(self, device: str, assignment: Assignment) -> str:
        """See Method."""
        return f"tensors for {assignment.recipe.batch}"


class Planning:
    """A planner that shows what it was asked for."""

    slower = False

    def again(self, planned: Any, assignment: Assignment, emission: str) -> str:
        """See Planner."""
        return emission

    def manifest(self, structure: Any) -> None:
        """See Planner."""


@pytest.mark.parametrize(
    ("rule", "reason", "offered"),
    [
        ("mb_per_day", "failed", ["tensors for 4", "tensors for 4"]),
        ("hours", "failed", [None, None]),
        ("operators", "bad_artifact", [None, None]),
        ("", "failed", [None, None]),
    ],
    ids=["fewer bytes", "other hours", "other operators", "broken"],
)
def test_rules_of_an_owner_that_a_smaller_model_obeys_get_one(rule: str, reason: Any, offered: Any) -> None:
    method: Any = Halving()
    planner: Any = Planning()
    offer_less = smaller_tasks(method, planner)
    task = SimpleNamespace(title="round 1", sum=None)
    planned: Any = SimpleNamespace(
        device="a", task=task, assignment=Assignment(Structure(ModelSpec("mlp", (4,), 2)), Recipe(8, 0.1, 1))
    )

    assert [offer_less(planned, Refusal("t", reason, "no", rule=rule)) for _ in range(2)] == offered


class Whole:
    """A method without smaller models."""

    def shrink(self, device: str, assignment: Assignment, refusal: Refusal) -> Assignment | None:
        """See Method."""


class Packing:
    """A planner that shows in how many bits a change is asked for; codecs: those that the device knows."""

    def __init__(self, *codecs: str) -> None:
        self._codecs = codecs

    def known_to(self, device: str, returns: Returns) -> Returns:
        """See Planner."""
        return returns if returns.codec in self._codecs else structs.replace(returns, codec="int8")

    def resized(self, planned: Any, assignment: Assignment) -> Any:
        """See Planner."""
        planned.assignment = assignment
        return assignment.returns.codec


@pytest.mark.parametrize(
    ("codecs", "offered"),
    [(("int8", "int4"), ["int8", "int4", None]), (("int8",), ["int8", None, None])],
    ids=["an agent of now", "one of before"],
)
def test_an_owner_who_spares_bytes_is_asked_for_fewer_bits_where_there_is_no_smaller_model(
    codecs: tuple[str, ...], offered: list[Any]
) -> None:
    method: Any = Whole()
    planner: Any = Packing(*codecs)
    offer_less = smaller_tasks(method, planner)
    assignment = Assignment(Structure(ModelSpec("mlp", (4,), 2)), Recipe(8, 0.1, 1))
    planned: Any = SimpleNamespace(device="a", task=SimpleNamespace(title="round 1", sum=None), assignment=assignment)

    refusal = Refusal("t", "failed", "no", rule="mb_per_day")
    got: list[Any] = [offer_less(planned, refusal) for _ in range(3)]
    assert got == offered


class Builds(Planning):
    """One that tells what graphs take, for a run that prefers slower devices to smaller models."""

    slower = True

    def __init__(self, agent_takes_parts: bool) -> None:
        self.agent_takes_parts = agent_takes_parts
        self.builder = Builder()

    def takes_parts(self, device: str) -> bool:
        """See Planner."""
        return self.agent_takes_parts

    def manifest(self, structure: Any) -> Any:
        """See Planner."""
        return self.builder.build(structure).manifest

    def resized(self, planned: Any, assignment: Assignment) -> Assignment:
        """See Planner."""
        return assignment


@pytest.mark.parametrize(
    ("agent_takes_parts", "part", "kept"),
    [(True, 8, True), (False, None, False)],
    ids=["now", "before"],
)
def test_a_device_whose_memory_shrank_does_the_same_in_parts_where_the_run_prefers_that(
    agent_takes_parts: bool, part: int | None, kept: bool
) -> None:
    method, planner = cast(Any, SimpleNamespace(shrink=lambda *_: None)), cast(Any, Builds(agent_takes_parts))
    first = Assignment(Structure(ModelSpec("lenet", (1, 28, 28), 10)), Recipe(32, 0.1, 1))
    planned: Any = SimpleNamespace(device="a", task=SimpleNamespace(title="round 1", sum=None), assignment=first)
    leanest = replace(first.structure, parts=True, recompute=True)
    free_bytes = need_bytes(planner.manifest(leanest), 8)

    found: Any = smaller_tasks(method, planner)(planned, Refusal("t", "over_budget", "no", free_bytes=free_bytes))

    assert found.recipe.part == part
    assert (found.recipe.batch == 32) == kept


def test_offers_of_less_survive_the_death_of_the_server(tmp_path: Path) -> None:
    def refuse_eight(artifact: Artifact, recipe: Recipe) -> None:
        if recipe.batch > 2:
            raise OverBudget(212_000_000, 180_000_000)

    states = []
    for name, interrupt in (("calm", False), ("killed", True)):
        folder, broker = tmp_path / name, MemoryBroker()
        server = Server(broker, folder, devices=2, rounds=2)
        small = Running(broker, "small", folder, check=refuse_eight)

        def die(event: Any) -> None:
            if isinstance(event, events.LessOffered):
                raise KeyboardInterrupt

        with agents(broker, folder, "a"):
            if interrupt:
                with pytest.raises(KeyboardInterrupt):
                    server.run(observer=die)
            states.append(server.run().state().tensors)
        small.stop()
        offered = [planned for planned in present(server.store.plan(Position(1, 0))) if planned.device == "small"]
        assert [planned.assignment.recipe.batch for planned in offered] == [8, 4, 2]

    for name, value in states[0].items():
        np.testing.assert_array_equal(states[1][name], value)


def test_a_device_that_cannot_measure_in_large_batches_is_offered_smaller_ones(
    broker: MemoryBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(artifact: Artifact, recipe: Recipe) -> None:
        if recipe.epochs == 0 and recipe.batch > 2:
            raise OverBudget(212_000_000, 180_000_000)

    server = Server(broker, tmp_path, devices=2, rounds=1)
    # A trainer that is kept from the round was checked already.
    small = Running(broker, "small", tmp_path, check=check)
    monkeypatch.setattr(small.tools.kept, "put", lambda *_, **__: None)
    with agents(broker, tmp_path, "a"):
        server.run()
    small.stop()

    last = evaluation_after(1)
    plan, replies = server.store.plan(last), server.store.replies(last)
    offered = [planned for planned in present(plan) if planned.device == "small"]
    assert [planned.assignment.recipe.batch for planned in offered] == [8, 4, 2]
    assert [replies[planned.task.task].outcome for planned in offered] == ["refused", "refused", "update"]
    assert len({planned.task.weights.sha256 for planned in offered}) == 1
    assert present(replies[offered[-1].task.task].update).stats.correct_before is not None


@pytest.mark.parametrize(("hiding", "offered"), [(None, True), (Hiding(1.0, 1.0), False)], ids=["open", "hidden"])
def test_larger_lots_than_were_accounted_for_are_not_offered(hiding: Hiding | None, offered: bool) -> None:
    planner: Any = SimpleNamespace(resized=lambda planned, assignment: assignment.recipe.batch)
    method: Any = Halving()
    task = SimpleNamespace(title="round 1", sum=None, privacy=hiding)
    planned: Any = SimpleNamespace(
        device="a", task=task, assignment=Assignment(Structure(ModelSpec("mlp", (4,), 2)), Recipe(8, 0.1, 1))
    )
    refusal = Refusal("t", "failed", "learns from more", rule="least_batch", least=16)

    found: Any = smaller_tasks(method, planner)(planned, refusal)
    assert found == (16 if offered else None)
