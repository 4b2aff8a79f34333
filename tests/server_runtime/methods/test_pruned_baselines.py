"""Masks and channels of methods that prune, with numbers that can be checked by hand."""

from typing import Any

import numpy as np
import pytest
from msgspec import structs

from fedwright.protocol.messages import DataSummary, Stats
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.builder import initial_weights
from fedwright.server_runtime.blocks.channel_importance import (
    channel_norms,
    largest_plan,
    plan_from_marks,
    plan_to_marks,
)
from fedwright.server_runtime.blocks.slicing import Axis, take
from fedwright.server_runtime.methods.base import Assignment, CheckedUpdate, MethodState
from fedwright.server_runtime.methods.baselines.pruned.hermes import Hermes
from fedwright.server_runtime.methods.baselines.pruned.lotteryfl import LotteryFL
from fedwright.server_runtime.methods.baselines.pruned.tailorfl import TailorFL
from fedwright.server_runtime.methods.params.pruned import PruningParams, TailorFLParams
from fedwright.server_runtime.methods.params.submodels import Levels
from fedwright.server_runtime.spec import ModelSpec
from helpers.fleet import report, setting

SPEC = ModelSpec("mlp", (1, 4, 4), 3)
INITIAL = initial_weights(zoo.create(SPEC, seed=1))
STATS = Stats(samples=10, steps=1, train_s=0.1, cpu_s=0.1, peak_rss_bytes=1)


def told(counts: list[int] | None = None) -> Any:
    summary = DataSummary(samples=24, holdout=8, input_shape=[1, 4, 4], classes=3, class_counts=counts)
    return report(data=summary)


def update(sent: dict[str, Any], assignment: Assignment, change: float, loss: float | None = None) -> CheckedUpdate:
    tensors = {name: np.full_like(value, change) for name, value in sent.items()}
    return CheckedUpdate(tensors, structs.replace(STATS, loss_last=loss), assignment)


def test_norms_of_channels_add_up_over_all_axes_of_a_group() -> None:
    tensors = {"w": np.array([[3.0, 0.0], [4.0, 1.0]]), "v": np.array([[1.0, 2.0]])}
    axes = {"w": (Axis("a"), None), "v": (None, Axis("a"))}

    found = channel_norms(tensors, axes)

    np.testing.assert_allclose(found["a"], [np.sqrt(9 + 1), np.sqrt(16 + 1 + 4)])
    plan = largest_plan({"a": np.array([1.0, 5.0, 5.0, 2.0])}, {"a": 2})
    assert plan["a"].tolist() == [1, 2]
    assert plan_from_marks(plan_to_marks(plan), {"a": 2})["a"].tolist() == [1, 2]


def lottery(**params: float) -> LotteryFL:
    return LotteryFL(PruningParams(**params), setting(spec=SPEC, initial=INITIAL))


def test_a_ready_device_loses_its_smallest_entries_and_begins_anew() -> None:
    method = lottery(prune_ratio=0.5, least=0.25, loss_below=1.0)
    plan = method.assign({"a": told(), "b": told()}, 1)
    for device, loss in (("a", 0.5), ("b", 2.0)):
        method.absorb(device, update(method.emit(device, plan[device]).weights, plan[device], 0.1, loss))
    method.advance()

    again = method.assign({"a": told(), "b": told()}, 2)
    ours, theirs = method.emit("a", again["a"]), method.emit("b", again["b"])
    matrices = [name for name, value in INITIAL.items() if value.ndim > 1]
    assert method.density("a") == pytest.approx(0.5, abs=0.01)
    assert method.density("b") == 1.0
    for name in matrices:
        learned, mask = np.abs(INITIAL[name] + 0.1), ours.masks[name]
        assert learned[mask].min() >= learned[~mask].max()
        np.testing.assert_array_equal(ours.weights[name], np.where(mask, INITIAL[name], 0))
        np.testing.assert_allclose(theirs.weights[name], INITIAL[name] + 0.1, atol=1e-6)
    assert (again["a"].returns.masked, again["b"].returns.masked) == (True, False)


def test_entries_are_averaged_over_the_tickets_that_hold_them() -> None:
    method = lottery(prune_ratio=0.5, least=0.5, loss_below=1.0)
    plan = method.assign({"a": told(), "b": told()}, 1)
    method.absorb("a", update(method.emit("a", plan["a"]).weights, plan["a"], 0.0, 0.5))
    method.advance()
    again = method.assign({"a": told(), "b": told()}, 2)
    mask = method.emit("a", again["a"]).masks["head.weight"]
    method.absorb("a", update(method.emit("a", again["a"]).weights, again["a"], 0.2))
    method.absorb("b", update(method.emit("b", again["b"]).weights, again["b"], 0.4))
    method.advance()

    moved = method.model_of("b")[1]["head.weight"] - INITIAL["head.weight"]
    np.testing.assert_allclose(moved, np.where(mask, 0.3, 0.4), atol=1e-6)
    np.testing.assert_array_equal(method.model_of("a")[1]["head.weight"] == 0, ~mask)
    # Nobody falls below the final density.
    third = method.assign({"a": told()}, 3)
    method.absorb("a", update(method.emit("a", third["a"]).weights, third["a"], 0.0, 0.1))
    assert method.density("a") == pytest.approx(0.5, abs=0.01)


def test_hermes_averages_only_what_all_have() -> None:
    method = Hermes(PruningParams(prune_ratio=0.5, least=0.5, loss_below=1.0), setting(spec=SPEC, initial=INITIAL))
    plan = method.assign({"a": told(), "b": told()}, 1)
    method.absorb("a", update(method.emit("a", plan["a"]).weights, plan["a"], 0.2, 0.5))
    method.absorb("b", update(method.emit("b", plan["b"]).weights, plan["b"], 0.4, 2.0))
    metrics = method.advance()

    small, own = method.model_of("a")
    whole, other = method.model_of("b")
    axes, full = zoo.axes_of(SPEC), zoo.full_sizes(SPEC)
    assert zoo.sizes_of(small) == {group: size // 2 for group, size in full.items()}
    assert whole == SPEC
    assert metrics["density"] < 1
    # Where both have an entry it is the mean of + 0.2 and + 0.4; elsewhere each keeps its own.
    kept = largest_plan(channel_norms({n: v + 0.2 for n, v in INITIAL.items()}, axes), zoo.sizes_of(small))
    for name, value in take({n: v + np.float32(0.3) for n, v in INITIAL.items()}, axes, kept).items():
        np.testing.assert_allclose(own[name], np.asarray(value, np.float32), atol=1e-6)
    away = np.concatenate([(other[name] - value).reshape(-1) for name, value in INITIAL.items()])
    assert {round(float(value), 4) for value in away} == {0.3, 0.4}


def test_hermes_goes_on_from_its_state_with_pruned_models() -> None:
    params, given = PruningParams(prune_ratio=0.5, least=0.25, loss_below=1.0), setting(spec=SPEC, initial=INITIAL)
    method = Hermes(params, given)
    for number in (1, 2):
        plan = method.assign({"a": told()}, number)
        method.absorb("a", update(method.emit("a", plan["a"]).weights, plan["a"], 0.1, 0.5))
        method.advance()
    other = Hermes(params, given)
    other.restore(MethodState.read(method.state().to_bytes()))

    assert other.state().to_bytes() == method.state().to_bytes()
    assert other.model_of("a")[0] == method.model_of("a")[0]
    assert zoo.sizes_of(other.model_of("a")[0]) == {g: size // 4 for g, size in zoo.full_sizes(SPEC).items()}


def tailor(alike: float = 0.0) -> TailorFL:
    params = TailorFLParams(Levels(sizes=(0.5,)), memory=0.0, alike=alike)
    return TailorFL(params, setting(spec=SPEC, initial=INITIAL))


def move_channel(method: TailorFL, device: str, channel: int, counts: list[int] | None = None) -> None:
    """A round in which only one of the device's channels is moved."""
    plan = method.assign({device: told(counts)}, 1)[device]
    sent = method.emit(device, plan).weights
    change = {name: np.zeros_like(value) for name, value in sent.items()}
    first = next(name for name, value in change.items() if value.ndim == 1)
    change[first][channel] = 1.0
    method.absorb(device, CheckedUpdate(change, STATS, plan))
    method.advance()


def test_a_channel_that_moves_becomes_the_most_important_of_its_group() -> None:
    method = tailor()
    group = next(iter(sorted(method.scores("a"))))
    before = method.plan_of("a", method.spec_of("a"), method.assign({"a": told()}, 1)["a"].marks)[group]
    move_channel(method, "a", 0)

    after = method.scores("a")[group]
    assert after[before[0]] == 1.0
    # What the device held and did not move matters nothing; what it never had is as it was.
    assert all(after[index] == 0 for index in before[1:])
    rest = np.setdiff1d(np.arange(len(after)), before)
    np.testing.assert_array_equal(after[rest], tailor().scores("a")[group][rest])


def test_devices_with_like_data_choose_like_channels() -> None:
    method = tailor(alike=1.0)
    move_channel(method, "a", 0, counts=[5, 0, 0])
    method.assign({"b": told([9, 0, 0]), "c": told([0, 4, 4])}, 2)
    group = next(iter(sorted(method.scores("a"))))

    np.testing.assert_allclose(method.scores("b")[group], method.scores("a")[group])
    np.testing.assert_allclose(method.scores("c")[group], tailor().scores("c")[group])


def test_a_larger_part_counts_more() -> None:
    params = TailorFLParams(Levels(sizes=(1.0, 0.5)), alike=0.0)
    method = TailorFL(params, setting(spec=SPEC, initial=INITIAL))
    plan = method.assign({"d-0": told(), "d-1": told()}, 1)
    widths = {device: zoo.width_of(one.structure.spec) for device, one in plan.items()}
    for device, change in zip(sorted(plan), (0.0, 0.3), strict=True):
        method.absorb(device, update(method.emit(device, plan[device]).weights, plan[device], change))
    method.advance()

    moved = method.weights["head.bias"] - INITIAL["head.bias"]
    first, second = (widths[device] for device in sorted(plan))
    np.testing.assert_allclose(moved, 0.3 * second / (first + second), atol=1e-6)
    assert {first, second} == {1.0, 0.5}
