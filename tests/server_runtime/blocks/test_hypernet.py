"""The hypernetwork: signs, batches, saved states, standardised descriptions."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedwright.protocol.errors import ConfigError
from fedwright.server_runtime.blocks.hypernet import BATCH, Hypernet, HypernetForm, HypernetStart, Step
from fedwright.server_runtime.blocks.scaling import Scaling

TARGET = {"a.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "a.bias": np.zeros(2, np.float32)}
PLAIN = HypernetForm(inputs=4, hidden=8, norm=1.0)
FORMS = {
    "whole": PLAIN,
    "deep": HypernetForm(4, 8, layers=3),
    "chunked": HypernetForm(4, 8, norm=1.0, chunk=3, piece=2),
}
every_form = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)


def make(form: HypernetForm = PLAIN, **changes: Any) -> Hypernet:
    return Hypernet(form, HypernetStart(TARGET, {}, **{"default_spread": 0.1, **changes}), seed=3)


def rows(n: int, seed: int = 0) -> NDArray[Any]:
    return np.random.default_rng(seed).normal(size=(n, 4)).astype(np.float32)


def distance(net: Hypernet, row: NDArray[Any], final: dict[str, NDArray[Any]]) -> np.float32:
    made = net.generate(row[None])[0]
    answer: np.float32 = np.sqrt(sum(((made[name] - final[name]) ** 2).sum() for name in final))
    return answer


def change_to(net: Hypernet, row: NDArray[Any], final: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    made = net.generate(row[None])[0]
    return {name: final[name] - made[name] for name in final}


@every_form
def test_a_step_brings_the_weights_nearer_to_the_devices_result(form: HypernetForm) -> None:
    net, row = make(form), rows(1)[0]
    final = {name: value + 1 for name, value in TARGET.items()}
    before = distance(net, row, final)
    net.add(row, change_to(net, row, final))
    net.learn(Step(0.05))
    assert distance(net, row, final) < before


@every_form
def test_the_sign_as_printed_would_lead_away(form: HypernetForm) -> None:
    net, row = make(form), rows(1)[0]
    final = {name: value + 1 for name, value in TARGET.items()}
    before = distance(net, row, final)
    net.add(row, {name: -value for name, value in change_to(net, row, final).items()})
    net.learn(Step(0.05))
    assert distance(net, row, final) > before


def test_a_step_of_half_lands_on_the_result_when_the_hidden_norm_is_one() -> None:
    # rate (1 + ||h||²) = 1 with ||h|| = 1; a zero head gives the trunk no gradient, so nothing else moves
    net, row = make(default_spread=0.0), 3 * rows(1)[0]
    final = {name: value + 0.5 for name, value in TARGET.items()}
    net.add(row, change_to(net, row, final))
    assert net.reach(row[None], Step(0.5)) == pytest.approx(1.0, abs=1e-3)
    net.learn(Step(0.5))
    assert distance(net, row, final) < 1e-3


def test_it_begins_with_the_start_weights_where_its_head_is_zero() -> None:
    made = make(default_spread=0.0).generate(rows(2))
    for one in made:
        np.testing.assert_array_equal(one["a.weight"], TARGET["a.weight"])


@every_form
def test_many_at_once_are_the_same_as_one_by_one(form: HypernetForm) -> None:
    net, many = make(form), rows(40)
    together = net.generate(many)
    for row, made in zip(many, together, strict=True):
        np.testing.assert_allclose(net.generate(row[None])[0]["a.weight"], made["a.weight"], atol=1e-6)


@every_form
def test_the_mean_gradient_is_that_of_its_parts(form: HypernetForm) -> None:
    """One step on two changes moves as two half steps from the same place would."""
    both, first, second = make(form), make(form), make(form)
    start, (one, two) = both.state(), rows(2)
    ones = {name: np.ones_like(value) for name, value in TARGET.items()}
    both.add(one, ones)
    both.add(two, ones)
    first.add(one, ones)
    second.add(two, ones)
    for net in (both, first, second):
        net.learn(Step(0.1))
    for name, value in start.items():
        moved = (first.state()[name] - value + second.state()[name] - value) / 2
        np.testing.assert_allclose(both.state()[name] - value, moved, atol=1e-6)


@every_form
def test_a_restored_one_goes_on_to_the_same_bytes(form: HypernetForm) -> None:
    step = Step(0.1, momentum=0.9, weight_decay=0.01, clip_norm=1.0)
    ones = {name: np.ones_like(value) for name, value in TARGET.items()}
    net, (one, two) = make(form), rows(2)
    net.add(one, ones)
    net.learn(step)
    net.add(two, ones, 0.5)
    other = make(form, default_spread=0.7)
    other.restore(net.state())
    for each in (net, other):
        each.add(one, ones)
        each.learn(step)
    assert net.state().keys() == other.state().keys()
    for name, value in net.state().items():
        np.testing.assert_array_equal(other.state()[name], value)


def test_a_shared_one_gives_everyone_the_same_and_still_learns() -> None:
    net, (one, two) = make(HypernetForm(4, 8, norm=1.0, shared=True)), rows(2)
    net.add(one, {name: np.ones_like(value) for name, value in TARGET.items()})
    net.learn(Step(1.0))
    made = net.generate(np.stack([one, two]))
    np.testing.assert_array_equal(made[0]["a.weight"], made[1]["a.weight"])
    np.testing.assert_allclose(made[0]["a.weight"], TARGET["a.weight"] + 1, atol=1e-6)


def test_sequential_is_a_step_for_each() -> None:
    together, apart = make(), make(HypernetForm(4, 8, norm=1.0, sequential=True))
    for net in (together, apart):
        for _ in range(2):
            net.add(rows(1)[0], {name: np.ones_like(value) for name, value in TARGET.items()})
        net.learn(Step(0.1))
    start = make().state()["head.bias"]
    np.testing.assert_allclose(together.state()["head.bias"] - start, 0.1, atol=1e-6)
    np.testing.assert_allclose(apart.state()["head.bias"] - start, 0.2, atol=1e-6)


def test_many_changes_take_no_more_memory_than_a_batch() -> None:
    net = make()
    for row in rows(3 * BATCH + 1):
        net.add(row, {name: np.ones_like(value) for name, value in TARGET.items()})
    assert len(net.state()["pending.inputs"]) == 1
    start = make().state()["head.bias"]
    net.learn(Step(0.1))
    np.testing.assert_allclose(net.state()["head.bias"] - start, 0.1, atol=1e-5)


def test_a_step_that_diverges_is_refused() -> None:
    with pytest.raises(ConfigError, match="lower the rate to about"):
        make().check_step(rows(3), Step(1.5))
    assert make().check_step(rows(3), Step(0.9)) == pytest.approx(1.8, abs=0.01)


@pytest.mark.parametrize(
    ("row", "words"),
    [(np.zeros(3, np.float32), "has 3 numbers but"), (np.array([0, np.nan, 0, 0], np.float32), "not finite")],
    ids=["length", "nan"],
)
def test_a_bad_description_is_refused(row: NDArray[Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make().generate(row[None])


def test_descriptions_are_standardised_over_the_fleet() -> None:
    fleet = np.array([[1, 10, 7], [3, 30, 7], [1, 30, 7], [3, 10, 7]], np.float32)
    scaling = Scaling.of(fleet)
    # two coordinates that differ share the mean square of three
    expected = np.sqrt(1.5) * np.array([[-1, -1, 0], [1, 1, 0], [-1, 1, 0], [1, -1, 0]])
    np.testing.assert_allclose([scaling.apply(row) for row in fleet], expected, atol=1e-5)
    np.testing.assert_allclose(scaling.apply(np.array([5, 20, 9], np.float32)), [3 * np.sqrt(1.5), 0, 0], atol=1e-5)


def test_directions_in_which_few_descriptions_differ_count_as_well() -> None:
    """One coordinate follows the other: what they have in common is 5 times as wide as what they do not."""
    common, rest = np.array([-1.0, 1, -1, 1]), np.array([-1.0, -1, 1, 1])
    fleet = np.stack([common + 0.2 * rest, common - 0.2 * rest], axis=1).astype(np.float32)
    scaling = Scaling.of(fleet)
    before = np.linalg.svd((fleet - scaling.mean) / scaling.std, compute_uv=False)
    after = np.linalg.svd(np.stack([scaling.apply(row) for row in fleet]), compute_uv=False)
    assert before[1] / before[0] == pytest.approx(0.2, abs=1e-3)
    # s / sqrt(s² + (s_1 / 10)²) with s = s_1 and s_1 / 5
    assert after[1] / after[0] == pytest.approx(np.sqrt(1.01) / np.sqrt(1.25), abs=1e-3)


def test_a_fleet_of_one_or_of_equals_is_left_as_it_is() -> None:
    row = np.array([1.0, 2.0, 3.0], np.float32)
    np.testing.assert_array_equal(Scaling.of(row[None]).apply(row), row)
    np.testing.assert_array_equal(Scaling.of(np.stack([row, row])).apply(row), np.zeros(3))


def test_an_entry_follows_the_mean_of_those_who_changed_it() -> None:
    """Two devices with one description; the first changes both entries, the second only the other one."""
    net = Hypernet(
        HypernetForm(4, 8, norm=1.0, by_entry=True), HypernetStart({"w": np.zeros(2, np.float32)}, {}), seed=0
    )
    row = np.ones(4, np.float32)
    before = net.generate(row[None])[0]["w"]
    net.add(row, {"w": np.array([0.2, 0.2], np.float32)})
    net.add(row, {"w": np.array([0.0, 0.4], np.float32)})
    kept = net.state()
    net.learn(Step(1.0))
    moved = net.generate(row[None])[0]["w"] - before
    # (1 + ||h||²) Δ / max(2, devices): 2 · 0.2 / 2 and 2 · 0.6 / 2
    np.testing.assert_allclose(moved, [0.2, 0.6], atol=5e-3)
    resumed = Hypernet(net.form, HypernetStart({"w": np.zeros(2, np.float32)}, {}), seed=1)
    resumed.restore(kept)
    resumed.learn(Step(1.0))
    np.testing.assert_array_equal(resumed.generate(row[None])[0]["w"], net.generate(row[None])[0]["w"])


def test_a_step_that_devices_share_is_checked_over_the_fleet() -> None:
    net = Hypernet(
        HypernetForm(4, 8, norm=2.0, by_entry=True), HypernetStart({"w": np.zeros(2, np.float32)}, {}), seed=0
    )
    alike = np.ones((8, 4), np.float32)
    # one device alone lands on its result; eight that are all alike go 1 + ||h||² = 5 times as far
    assert net.reach(alike[:1], Step(1.0)) == pytest.approx(1.0, abs=1e-3)
    assert net.reach(alike, Step(1.0)) == pytest.approx(5.0, abs=1e-2)
    with pytest.raises(ConfigError, match="lower the rate"):
        net.check_step(alike, Step(1.0))


def test_a_description_that_says_nothing_gets_what_all_have_in_common() -> None:
    """The mean of standardised descriptions is zero: its hidden vector is short, so that b speaks."""
    form = HypernetForm(64, 32, norm=1.0)
    net = Hypernet(form, HypernetStart({"w": np.zeros(2, np.float32)}, {}), seed=0)
    usual = np.random.default_rng(0).standard_normal((20, 64)).astype(np.float32)
    assert net.reach(usual, Step(1.0)) == pytest.approx(2.0, abs=1e-3)
    assert net.reach(np.zeros((1, 64), np.float32), Step(1.0)) < 1.1


def test_a_projection_learns_behind_the_heads() -> None:
    net = Hypernet(HypernetForm(4, 8, norm=1.0, project=2), HypernetStart({"w": np.ones(3, np.float32)}, {}), seed=0)
    row, final = np.ones((1, 4), np.float32), np.full(3, 2.0, np.float32)
    distances = []
    for _ in range(4):
        made = net.generate(row)[0]["w"]
        distances.append(float(np.linalg.norm(made - final)))
        net.add(row[0], {"w": final - made})
        net.learn(Step(0.2))
    assert distances == sorted(distances, reverse=True)
    assert np.abs(net.state()["project.out"]).max() > 0


def test_large_targets_need_few_weights_of_their_own() -> None:
    target = {"w": np.zeros((1000, 1000), np.float32)}
    net = Hypernet(HypernetForm(16, 32, norm=1.0, chunk=8192), HypernetStart(target, {}), seed=0)
    assert net.outputs == 1_000_000
    assert net.parameters - net.outputs < 300_000
