"""What every registered method must do, and the one that docs/own-method.md shows; others join by being registered."""

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from fedwright.protocol import tensors
from fedwright.protocol.errors import ConfigError
from fedwright.protocol.messages import DataSummary, Refusal, Report, Stats
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.builder import initial_weights
from fedwright.server_runtime.methods.base import CheckedUpdate, Method, MethodState, Relay
from fedwright.server_runtime.methods.registry import METHODS, find
from fedwright.server_runtime.public_data.examples import PublicData
from fedwright.server_runtime.spec import ModelSpec
from helpers.fleet import report, setting
from helpers.outside_package import HALF_STEP, write_half_step
from helpers.present import present

COUNTS = {"a": [8, 8, 8, 0], "b": [1, 1, 12, 10], "c": [6, 6, 6, 6]}
SHAPE, CLASSES = (1, 8, 8), 4


def described(device: str, **changes: Any) -> Report:
    """A report with class counts and a descriptor."""
    counts = COUNTS[device]
    data = DataSummary(
        samples=24,
        holdout=8,
        input_shape=list(SHAPE),
        classes=CLASSES,
        class_counts=counts,
        descriptor=[count / 24 for count in counts],
    )
    return report(data=data, **changes)


REPORTS = {device: described(device) for device in COUNTS}
PUBLIC = PublicData(np.random.default_rng(3).random((20, *SHAPE), np.float32), np.arange(20) % CLASSES)
STATS = Stats(samples=10, steps=1, train_s=0.1, cpu_s=0.1, peak_rss_bytes=1)

NAMES = [*sorted(METHODS), HALF_STEP]
every_method = pytest.mark.parametrize("name", NAMES, ids=lambda name: name.rpartition(":")[2])
# What a user might bring: batch normalisation, attention, or nothing special.
OWN = {kind: f"python:helpers.own_models:{kind}" for kind in ("cnn", "transformer", "mlp")}
# Methods that cannot take such a model, and what they say.
REFUSED = {
    ("adapters-private", "cnn"): r"has no adapters; name the layers .* in method\.targets",
    ("adapters-private", "mlp"): r"has no adapters; name the layers .* in method\.targets",
    ("adapters-private", "transformer"): r"has no adapters; name the layers .* in method\.targets",
    ("fedbn", "mlp"): r"cannot be divided into private layers and shared ones",
    ("hyperflora", "cnn"): r"has no adapters; name the layers .* in method\.targets",
    ("hyperflora", "mlp"): r"has no adapters; name the layers .* in method\.targets",
    ("hyperflora", "transformer"): r"has no adapters; name the layers .* in method\.targets",
    ("scalefl", "cnn"): r"needs a model of the zoo with exits.*use cnn-exits",
    ("scalefl", "mlp"): r"needs a model of the zoo with exits.*use cnn-exits",
    ("scalefl", "transformer"): r"needs a model of the zoo with exits.*use cnn-exits",
}
PAIRS = [(name, METHODS[name].model) for name in sorted(METHODS)] + [(HALF_STEP, "cnn-small")]
PAIRS += [(name, OWN[kind]) for name in NAMES for kind in OWN if (name, kind) not in REFUSED]
every_pair = pytest.mark.parametrize(("name", "model"), PAIRS, ids=lambda word: word.rpartition(":")[2])


@pytest.fixture(autouse=True, scope="module")
def half_step(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The document's method, where it can be imported."""
    folder = tmp_path_factory.mktemp("half_step")
    write_half_step(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield
    sys.modules.pop("half_step", None)


def make(name: str, model: str | None = None) -> Method:
    """A method at its birth, on the model it is meant for or on another."""
    entry = find(name)
    spec = ModelSpec(model or entry.model, SHAPE, CLASSES)
    initial = initial_weights(zoo.create(spec, seed=1))
    return entry.make(entry.params(), setting(spec=spec, initial=initial, public=PUBLIC))


def made_known(name: str, model: str | None = None) -> Method:
    """A method that has met the devices."""
    method = make(name, model)
    method.assign(REPORTS, 1)
    return method


def play_round(method: Method, number: int, change: float) -> list[Relay]:
    """One round in which every device moves all its weights by `change`; returns what would be passed on."""
    relays = []
    assignments = method.assign(REPORTS, number)
    emissions = {device: method.emit(device, assignment) for device, assignment in assignments.items()}
    for device, assignment in sorted(assignments.items()):
        weights = emissions[device].weights
        sent = {name: np.full_like(value, change) for name, value in weights.items()}
        if assignment.returns.weights == "weights":
            sent = {name: value + change for name, value in weights.items()}
        relays.append(method.absorb(device, CheckedUpdate(sent, STATS, assignment)))
    method.advance()
    return [relay for relay in relays if relay is not None]


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_method_says_what_it_is(name: str) -> None:
    assert METHODS[name].summary
    module = __import__(METHODS[name].method.__module__, fromlist=["x"])
    for word in ("Paper:", "Implemented:", "Left out:", "Differs:"):
        assert word in present(module.__doc__), f"the ledger of {name} lacks {word}"


@every_pair
def test_devices_that_learn_nothing_change_nothing(name: str, model: str) -> None:
    method = made_known(name, model)
    before = {key: value.copy() for key, value in method.model_of("a")[1].items()}
    play_round(method, 1, change=0.0)
    for key, value in method.model_of("a")[1].items():
        np.testing.assert_allclose(value, before[key], atol=1e-6)


@every_pair
def test_a_round_changes_the_model(name: str, model: str) -> None:
    method = made_known(name, model)
    before = {key: value.copy() for key, value in method.model_of("a")[1].items()}
    play_round(method, 1, change=0.25)
    after = method.model_of("a")[1]
    assert any(before[key].shape != value.shape or not np.allclose(value, before[key]) for key, value in after.items())


@every_method
def test_a_method_that_passes_work_on_says_so_at_its_registration(name: str) -> None:
    method = make(name)
    relays = [relay for number in (1, 2, 3) for relay in play_round(method, number, 0.01)]
    entry = find(name)
    assert not relays or entry.relays(entry.params())


@every_pair
def test_planning_again_gives_the_same_plan(name: str, model: str) -> None:
    method = make(name, model)
    assert method.assign(REPORTS, 1) == method.assign(REPORTS, 1)


@every_pair
def test_a_restored_method_goes_on_to_the_same_bytes(name: str, model: str) -> None:
    method = make(name, model)
    play_round(method, 1, change=0.25)
    saved = MethodState.read(method.state().to_bytes())
    play_round(method, 2, change=-0.125)

    restored = make(name, model)
    restored.restore(saved)
    play_round(restored, 2, change=-0.125)

    assert restored.state().to_bytes() == method.state().to_bytes()


@every_method
def test_what_planning_learned_is_known_again(name: str) -> None:
    method = made_known(name)
    method.meet(REPORTS)
    learned = method.planning_state()
    other = make(name)
    if learned:
        other.restore_planning(MethodState.read(learned.to_bytes()))
    assert other.planning_state().to_bytes() == learned.to_bytes()


@every_method
def test_meeting_devices_twice_is_meeting_them_once(name: str) -> None:
    once, twice = made_known(name), made_known(name)
    once.meet(REPORTS)
    twice.meet(REPORTS)
    twice.meet(REPORTS)
    assert twice.state().to_bytes() == once.state().to_bytes()


@every_method
def test_emitting_again_gives_the_same(name: str) -> None:
    method = make(name)
    assignments = method.assign(REPORTS, 1)
    first, again = (
        {device: method.emit(device, assignment) for device, assignment in sorted(assignments.items())} for _ in "ab"
    )
    for device, emission in first.items():
        for kind in ("weights", "sides", "frozen", "masks", "public"):
            values = getattr(emission, kind)
            assert tensors.save(values) == tensors.save(getattr(again[device], kind))


@every_method
def test_a_round_without_updates_can_be_closed(name: str) -> None:
    method = made_known(name)
    before = {key: value.copy() for key, value in method.model_of("a")[1].items()}
    method.advance()
    for key, value in method.model_of("a")[1].items():
        np.testing.assert_allclose(value, before[key], atol=1e-6)


@every_method
def test_a_method_that_wants_no_sum_says_so(name: str) -> None:
    method = made_known(name)
    assert method.wanted_sum(REPORTS) is None


@every_method
def test_less_is_less(name: str) -> None:
    method = make(name)
    assignment = method.assign(REPORTS, 1)["a"]
    less = method.shrink("a", assignment, Refusal("t", "over_budget", "no", need_bytes=2, free_bytes=1))
    size = sum(value.size for value in method.emit("a", assignment).weights.values())
    assert less is None or sum(value.size for value in method.emit("a", less).weights.values()) < size


@every_method
def test_the_layers_that_a_device_keeps_are_layers_of_its_model(name: str) -> None:
    method = made_known(name)
    assert set(method.personal_layers("a")) <= method.model_of("a")[1].keys()


@every_method
def test_a_mean_of_updates_does_what_each_of_them_does(name: str) -> None:
    """Two devices with the same task, one by one, and as the mean with the weight of both."""
    if make(name).pools_by() is None:
        return
    models = []
    for together in (False, True):
        method = made_known(name)
        assignments = method.assign(REPORTS, 1)
        weights = method.emit("a", assignments["a"]).weights
        one, other = ({key: np.full_like(v, by) for key, v in weights.items()} for by in (0.1, 0.3))
        if together:
            by_samples = method.pools_by() == "samples"
            mean = {key: (one[key] + other[key]) / 2 for key in one}
            stats = structs.replace(STATS, samples=2 * STATS.samples)
            method.absorb("a", CheckedUpdate(mean, stats, assignments["a"], 1.0 if by_samples else 2.0))
        else:
            for sent in (one, other):
                method.absorb("a", CheckedUpdate(sent, STATS, assignments["a"]))
        method.advance()
        models.append(method.start_of("a")[1])
    for key, value in models[0].items():
        np.testing.assert_allclose(models[1][key], value, atol=1e-5)


@every_pair
def test_devices_that_do_not_train_get_no_training_task(name: str, model: str) -> None:
    method = make(name, model)
    assignments = method.assign({"a": described("a"), "watcher": described("b", trains=False)}, 1)
    assert "watcher" not in assignments or assignments["watcher"].recipe.epochs == 0


@pytest.mark.parametrize(("name", "kind"), REFUSED)
def test_a_model_that_a_method_cannot_take_is_refused_with_what_to_do(name: str, kind: str) -> None:
    with pytest.raises(ConfigError, match=REFUSED[name, kind]):
        make(name, OWN[kind]).assign(REPORTS, 1)


@every_method
def test_restoring_forgets_what_was_absorbed_since(name: Any) -> None:
    method, other = make(name), make(name)
    saved = method.state().to_bytes()
    assignments = method.assign(REPORTS, 1)
    for device, assignment in sorted(assignments.items()):
        weights = method.emit(device, assignment).weights
        junk = {key: np.full_like(value, 7.0) for key, value in weights.items()}
        method.absorb(device, CheckedUpdate(junk, STATS, assignment))
    method.restore(MethodState.read(saved))

    play_round(method, 1, change=0.25)
    play_round(other, 1, change=0.25)
    assert method.state().to_bytes() == other.state().to_bytes()
