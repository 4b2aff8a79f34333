"""A device's part in a secure sum: what it answers, and what it refuses."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from fedwright.device_runtime.describe.hidden_counts import HiddenCounts, counts_of, without_counts
from fedwright.device_runtime.store.secret import kept_secret
from fedwright.protocol.blobs import make_ref
from fedwright.protocol.crypto.secure_sum import from_bytes, unmasked
from fedwright.protocol.divergence import distribution, divergence
from fedwright.protocol.errors import ConfigError, DeviceError, NoQuorum
from fedwright.protocol.link.memory import MemoryBroker
from fedwright.protocol.messages import Answer, Ask, DataSummary, Recipe, Returns, Task
from fedwright.server_runtime.methods.baselines.fedavg import FedAvg
from fedwright.server_runtime.methods.params.submodels import FedAvgParams
from fedwright.simulation.simulate import simulate
from helpers.fleet import Server, make_data, setting
from helpers.present import present
from helpers.simulation import make_config, run_hiding_agents

COUNTS = {"a": [3, 0, 1], "b": [0, 4], "c": [1, 1, 5]}
SUMMARY = DataSummary(4, 1, [8], 3, class_counts=[3, 0, 1], pixel_std=0.5, descriptor=[0.25])


@pytest.fixture
def fleet(tmp_path: Path) -> dict[str, HiddenCounts]:
    """Three devices with keys of their own."""
    return {
        device: HiddenCounts(
            device, counts, secret=kept_secret(tmp_path / device / "sum-key", 32), folder=tmp_path / device
        )
        for device, counts in COUNTS.items()
    }


@pytest.fixture
def ask(fleet: dict[str, HiddenCounts]) -> Ask:
    return Ask("sum", "boot", "mask", 3, keys={device: hidden.public for device, hidden in fleet.items()})


def test_three_devices_add_up(fleet: dict[str, HiddenCounts], ask: Ask) -> None:
    parts = {device: from_bytes(hidden.answer(ask).masked, 3) for device, hidden in fleet.items()}
    opened = {d: hidden.answer(structs.replace(ask, stage="open", present=[*COUNTS])) for d, hidden in fleet.items()}
    total = unmasked(
        parts, {d: present(answer.own) for d, answer in opened.items()}, {d: a.pairs for d, a in opened.items()}
    )
    np.testing.assert_array_equal(total, [4, 5, 6])


def test_the_score_is_the_divergence_from_the_pool(fleet: dict[str, HiddenCounts], ask: Ask) -> None:
    said = fleet["b"].answer(Ask("sum", "boot", "score", 3, pooled=[4, 5, 6], smoothing=0.1))
    own, pool = distribution(np.array([0, 4, 0])), distribution(np.array([4, 5, 6]))
    assert said == Answer("sum", "score", score=divergence(own, pool))


def test_the_same_question_gets_the_same_answer_in_every_life(
    fleet: dict[str, HiddenCounts], ask: Ask, tmp_path: Path
) -> None:
    again = HiddenCounts("a", COUNTS["a"], secret=kept_secret(tmp_path / "a" / "sum-key", 32), folder=tmp_path / "a")
    assert again.answer(ask) == fleet["a"].answer(ask)
    assert (tmp_path / "a" / "sum-key").stat().st_mode & 0o077 == 0


def without(ask: Ask, device: str) -> dict[str, bytes]:
    return {other: key for other, key in ask.keys.items() if other != device}


REFUSED = {
    "not its key": (lambda ask: {"keys": {**ask.keys, "a": b"a" * 32}}, "does not have the key of a"),
    "too few": (lambda ask: {"keys": without(ask, "c")}, "a sum over 2 devices hides nothing; it takes 3"),
    "fewer counts than classes": (lambda ask: {"length": 2}, "the sum has 2 counts but this device has 3"),
    "low order": (lambda ask: {"keys": {**ask.keys, "z": bytes(32)}}, "device z: a public key is of low order"),
    "one key twice": (lambda ask: {"keys": {**ask.keys, "z": ask.keys["b"]}}, "two devices of the sum have one key"),
    "opened without it": (lambda ask: {"stage": "open", "present": ["b", "c"]}, "a sum over b, c is not opened"),
    "opened for strangers": (lambda ask: {"stage": "open", "present": ["a", "b", "x"]}, "over a, b, x is not opened"),
    "half a pool": (lambda ask: {"stage": "score", "pooled": [1, 2]}, "2 pooled counts but 3 were announced"),
    "an empty pool": (lambda ask: {"stage": "score", "pooled": [0, 0, 0]}, "no counted sample and smoothing is 0"),
}


@pytest.mark.parametrize(("change", "problem"), REFUSED.values(), ids=REFUSED)
def test_what_would_give_counts_away_is_refused(
    fleet: dict[str, HiddenCounts], ask: Ask, change: Callable[..., Any], problem: str
) -> None:
    said = fleet["a"].answer(structs.replace(ask, **change(ask)))
    assert problem in said.problem
    assert (said.masked, said.own, said.pairs, said.score) == (b"", None, {}, None)


def test_a_sum_is_opened_for_one_set_of_devices_only(fleet: dict[str, HiddenCounts], ask: Ask, tmp_path: Path) -> None:
    four = structs.replace(ask, keys={**ask.keys, "d": bytes(range(32))}, stage="open")
    assert not fleet["a"].answer(structs.replace(four, present=["a", "b", "c"])).problem
    assert not fleet["a"].answer(structs.replace(four, present=["a", "b", "c"])).problem
    reborn = HiddenCounts("a", COUNTS["a"], secret=kept_secret(tmp_path / "a" / "sum-key", 32), folder=tmp_path / "a")
    said = reborn.answer(structs.replace(four, present=["a", "b", "c", "d"]))
    assert said.problem == "this sum was opened for other devices before; begin it anew"


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
    assert counts_of(SUMMARY) == [3, 0, 1]
    with pytest.raises(ConfigError, match="no counts that it could hide"):
        counts_of(without_counts(SUMMARY))


def test_words_are_summed_up_where_words_are_asked_for(tmp_path: Path) -> None:
    secret = kept_secret(tmp_path / "sum-key", 32)
    hidden = HiddenCounts("a", [3, 1], secret=secret, folder=tmp_path, class_names=["cat", "dog"], words=[0, 0, 5, 2])
    assert hidden.offer()["sum_words"] == 4
    ask = Ask("sum", "boot", "score", 5, pooled=[0, 0, 9, 9, 9], smoothing=0.1, words=True)
    own = distribution(np.array([0, 0, 5, 2, 0]))
    assert hidden.answer(ask).score == pytest.approx(divergence(own, distribution(np.array([0, 0, 9, 9, 9]))))
    assert "the sum has 3 counts but this device has 4" in hidden.answer(structs.replace(ask, length=3)).problem


def named(tmp_path: Path, names: list[str]) -> HiddenCounts:
    """A device with four samples of the first class and one of the second."""
    return HiddenCounts("a", [4, 1], secret=kept_secret(tmp_path / "key", 32), folder=tmp_path, class_names=names)


def test_named_counts_go_to_the_places_of_their_classes(tmp_path: Path) -> None:
    ask = Ask("sum", "boot", "score", 4, pooled=[9, 2, 1, 5], class_names=["fox", "ant", "dog", "cat"])
    said = named(tmp_path, ["cat", "fox"]).answer(ask)
    own, pool = distribution(np.array([1, 0, 0, 4]), smoothing=0.0), distribution(np.array([9, 2, 1, 5]), smoothing=0.0)
    assert said.score == pytest.approx(divergence(own, pool))


def test_names_are_as_private_as_counts(tmp_path: Path) -> None:
    """The server hears that a class is missing in its list, but not which."""
    ask = Ask("sum", "boot", "score", 2, pooled=[9, 2], class_names=["fox", "ant"])
    hidden = named(tmp_path, ["wolf", "fox"])
    recipe = Recipe(batch=1, learning_rate=0.1, seed=0)
    task = Task("t", "b", "r", 1, make_ref(b"a"), make_ref(b"w"), recipe, Returns(), 1.0, class_names=["fox", "ant"])
    with pytest.raises(DeviceError) as caught:
        hidden.check(task)
    for problem in (hidden.answer(ask).problem, str(caught.value)):
        assert "classes that the run does not list; list all in [model] classes" in problem
        assert "wolf" not in problem
    told = without_counts(structs.replace(SUMMARY, class_names=["wolf", "fox"], number_descriptor=[0.5]))
    assert (told.class_names, told.number_descriptor) == ([], None)
    assert without_counts(SUMMARY).class_names is None
