"""A device's part in a secure sum: what it answers, and what it refuses."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from fedwright.device_runtime.describe.hidden_counts import (
    MOST_COUNT,
    HiddenCounts,
    OwnCounts,
    counts_of,
    in_steps,
    without_counts,
)
from fedwright.protocol.blobs import make_ref
from fedwright.protocol.divergence import distribution, divergence
from fedwright.protocol.errors import ConfigError, DeviceError, NoQuorum
from fedwright.protocol.link.memory import MemoryBroker
from fedwright.protocol.messages import BlobRef, CountTerms, DataSummary, Recipe, Returns, SumAnswer, SumAsk, Task
from fedwright.protocol.sum_messages import SumStage
from fedwright.server_runtime.methods.baselines.fedavg import FedAvg
from fedwright.server_runtime.methods.params.submodels import FedAvgParams
from fedwright.simulation.simulate import simulate
from helpers.fleet import Server, make_data, setting
from helpers.simulation import make_config, run_hiding_agents

COUNTS = {"a": (3, 0, 1), "b": (0, 4), "c": (1, 1, 5)}
SUMMARY = DataSummary(4, 1, [8], 3, class_counts=[3, 0, 1], pixel_std=0.5, descriptor=[0.25])


@pytest.fixture
def fleet(tmp_path: Path) -> dict[str, HiddenCounts]:
    """Three devices."""
    return {d: HiddenCounts(d, OwnCounts(counts), folder=tmp_path / d) for d, counts in COUNTS.items()}


def ask(stage: SumStage, length: int = 3, **more: Any) -> SumAsk:
    terms = {"words": more.pop("words", False), "class_names": more.pop("class_names", [])}
    return SumAsk("sum", "boot", stage, "counts", counts=CountTerms(length, 3, **terms), **more)


def offer(data: bytes, chunk_bytes: int) -> BlobRef:
    return make_ref(data, chunk_bytes=chunk_bytes)


def test_the_score_is_the_divergence_from_the_pool_in_steps(fleet: dict[str, HiddenCounts]) -> None:
    said = fleet["b"].answer(ask("score", pooled=[4, 5, 6], smoothing=0.1), offer)
    own, pool = distribution(np.array([0, 4, 0])), distribution(np.array([4, 5, 6]))
    assert said == SumAnswer("sum", "score", score=in_steps(divergence(own, pool)))
    assert said.score == pytest.approx(divergence(own, pool), abs=math.log(2) / 128)


def test_the_same_question_gets_the_same_answer_in_every_life(fleet: dict[str, HiddenCounts], tmp_path: Path) -> None:
    again = HiddenCounts("a", OwnCounts(COUNTS["a"]), folder=tmp_path / "a")
    question = ask("score", pooled=[4, 5, 6])
    keys = fleet["a"].answer(ask("keys"), offer)
    assert keys.member is not None
    assert HiddenCounts("a", OwnCounts(COUNTS["a"]), folder=tmp_path / "a").answer(ask("keys"), offer) == keys
    assert again.answer(question, offer) == fleet["a"].answer(question, offer)


REFUSED = {
    "fewer counts than classes": (ask("keys", 2), "the sum has 2 counts but this device has 3"),
    "half a pool": (ask("score", pooled=[1, 2]), "2 pooled counts but 3 were announced"),
    "an empty pool": (ask("score", pooled=[0, 0, 0]), "no counted sample and smoothing is 0"),
    "no terms": (structs.replace(ask("keys"), counts=None), "not said which counts"),
    "a stage before its time": (ask("open"), "no change of that task"),
}


@pytest.mark.parametrize(("question", "problem"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_is_refused(fleet: dict[str, HiddenCounts], question: SumAsk, problem: str) -> None:
    said = fleet["a"].answer(question, offer)
    assert problem in said.problem
    assert said == SumAnswer("sum", question.stage, problem=said.problem)


def test_more_than_a_sum_has_room_for_is_refused(tmp_path: Path) -> None:
    many = HiddenCounts("a", OwnCounts((MOST_COUNT + 1, 0, 0)), folder=tmp_path)
    assert "for which a sum has no room" in many.answer(ask("keys"), offer).problem


ASKS_TOO_MUCH = {
    "class means": ({"returns": Returns(class_means=True)}, "asks for class means and their counts"),
    "some classes": ({"recipe": Recipe(8, 0.1, 0, classes=[1])}, "asks to train some classes alone"),
}


@pytest.mark.parametrize(("change", "words"), ASKS_TOO_MUCH.values(), ids=ASKS_TOO_MUCH)
def test_a_task_that_would_tell_counts_is_refused(
    fleet: dict[str, HiddenCounts], change: dict[str, Recipe | Returns], words: str
) -> None:
    plain = Task("t", "boot", "run", 1, make_ref(b"a"), make_ref(b"w"), Recipe(8, 0.1, 0), Returns(), deadline_s=5.0)
    fleet["a"].check(plain)
    with pytest.raises(DeviceError, match=f"{words}.*start the device without --hide-counts or use"):
        fleet["a"].check(structs.replace(plain, **change))


def test_a_hiding_agent_answers_such_a_task_with_a_refusal(tmp_path: Path) -> None:
    broker = MemoryBroker()
    server = Server(broker, tmp_path, devices=1, rounds=1)
    asking = FedAvg(FedAvgParams(), setting(returns=Returns(class_means=True)))
    with (
        run_hiding_agents(broker, tmp_path, {"a": make_data("a")}),
        pytest.raises(NoQuorum, match=r"a refused: .*asks for class means"),
    ):
        server.run(method=asking)


def test_a_simulated_device_that_hides_its_counts_refuses_alike(tmp_path: Path) -> None:
    config, text = make_config(
        tmp_path,
        model={"model": "cnn-gn"},
        method={"name": "framp", "describe": "one_hot"},
        simulate={"rows": 120, "hide_counts": True},
    )
    with pytest.raises(NoQuorum, match=r"device-0 refused: .*asks for class means"):
        simulate(config, text)


def test_nothing_of_the_content_is_told() -> None:
    assert without_counts(SUMMARY) == DataSummary(4, 1, [8], 3)
    assert counts_of(SUMMARY, sums=2, least=5) == OwnCounts((3, 0, 1), sums=2, least=5)
    with pytest.raises(ConfigError, match="no counts that it could hide"):
        counts_of(without_counts(SUMMARY))


def test_words_are_summed_up_where_words_are_asked_for(tmp_path: Path) -> None:
    own = OwnCounts((3, 1), ("cat", "dog"), words=(0, 0, 5, 2), sums=2)
    hidden = HiddenCounts("a", own, folder=tmp_path)
    assert hidden.offer() == {"sums_counts": True, "sum_words": 4}
    question = ask("score", 5, pooled=[0, 0, 9, 9, 9], smoothing=0.1, words=True)
    score = divergence(distribution(np.array([0, 0, 5, 2, 0])), distribution(np.array([0, 0, 9, 9, 9])))
    assert hidden.answer(question, offer).score == in_steps(score)
    fewer = ask("score", pooled=[0, 0, 9], words=True)
    assert "the sum has 3 counts but this device has 4" in hidden.answer(fewer, offer).problem


def named(tmp_path: Path, *names: str) -> HiddenCounts:
    """A device with four samples of the first class and one of the second."""
    return HiddenCounts("a", OwnCounts((4, 1), names), folder=tmp_path)


def test_named_counts_go_to_the_places_of_their_classes(tmp_path: Path) -> None:
    question = ask("score", 4, pooled=[9, 2, 1, 5], class_names=["fox", "ant", "dog", "cat"])
    said = named(tmp_path, "cat", "fox").answer(question, offer)
    own, pool = distribution(np.array([1, 0, 0, 4]), smoothing=0.0), distribution(np.array([9, 2, 1, 5]), smoothing=0.0)
    assert said.score == in_steps(divergence(own, pool))


def test_names_are_as_private_as_counts(tmp_path: Path) -> None:
    """The server hears that a class is missing in its list, but not which."""
    question = ask("score", 2, pooled=[9, 2], class_names=["fox", "ant"])
    hidden = named(tmp_path, "wolf", "fox")
    recipe = Recipe(batch=1, learning_rate=0.1, seed=0)
    task = Task("t", "b", "r", 1, make_ref(b"a"), make_ref(b"w"), recipe, Returns(), 1.0, class_names=["fox", "ant"])
    with pytest.raises(DeviceError) as caught:
        hidden.check(task)
    for problem in (hidden.answer(question, offer).problem, str(caught.value)):
        assert "classes that the run does not list; list all in [model] classes" in problem
        assert "wolf" not in problem
    told = without_counts(structs.replace(SUMMARY, class_names=["wolf", "fox"], number_descriptor=[0.5]))
    assert (told.class_names, told.number_descriptor) == ([], None)
    assert without_counts(SUMMARY).class_names is None
