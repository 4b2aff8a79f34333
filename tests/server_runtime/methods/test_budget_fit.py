"""Every method's `assign` keeps to a device's memory, seconds and bytes: real artifacts, reports that differ."""

from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from msgspec import structs

from fedwright.protocol.messages import DataSummary, Report, Stats
from fedwright.protocol.operator_costs import FEATURES
from fedwright.protocol.predictor import Profile
from fedwright.protocol.support.settings import from_dict
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.builder import Builder, initial_weights
from fedwright.server_runtime.blocks.budget import Budget
from fedwright.server_runtime.blocks.ranks import cut_rank, pad_rank
from fedwright.server_runtime.fleet.speeds import Speeds
from fedwright.server_runtime.methods.base import Assignment, CheckedUpdate, Method, Setting
from fedwright.server_runtime.methods.registry import find
from fedwright.server_runtime.methods.shared.budget_fit import cost_of, fits, largest_fitting
from fedwright.server_runtime.spec import ModelSpec, Optimizer
from helpers.fleet import report
from helpers.present import present

BUILDER = Builder()
CLASSES = 4
STATS = Stats(samples=10, steps=1, train_s=0.1, cpu_s=0.1, peak_rss_bytes=1)
# Method -> (model, input shape, parameters that let it choose).
CASES = {
    "heterofl": ("cnn-small", (1, 8, 8), {"levels": {"sizes": [1.0, 0.5, 0.25], "choose": "budget"}}),
    "fedrolex": ("cnn-small", (1, 8, 8), {"levels": {"sizes": [1.0, 0.5, 0.25], "choose": "budget"}}),
    "feddropout": ("cnn-small", (1, 8, 8), {"levels": {"sizes": [1.0, 0.5, 0.25], "choose": "budget"}}),
    "scalefl": ("cnn-exits", (1, 16, 16), {}),
    "hasa": ("cnn-small", (1, 8, 8), {"rule": "size", "budget": 0.6, "least": 0.1, "most": 1.0}),
    "hyperflora": ("cnn-lora", (1, 8, 8), {"rank": 4, "pretrain_rounds": 0, "pairs": False}),
    "fiarse": ("cnn-small", (1, 8, 8), {"sizes": [1.0, 0.25, 0.0625]}),
    "framp": ("cnn-gn", (1, 8, 8), {"sizes": [1.0, 0.25, 0.0625]}),
    "framp channels": ("cnn-gn", (1, 8, 8), {"sizes": [1.0, 0.25, 0.0625], "granularity": "channel"}),
}
# Methods whose smaller sizes also take less time and memory.
FASTER = ("heterofl", "fedrolex", "feddropout", "scalefl", "hasa", "framp channels")


def slow(factor: float = 1.0, **more: Any) -> bytes:
    """The profile of a board with so many nanoseconds for an element and ten times as much for a call."""
    row = dict.fromkeys(FEATURES, 0.0) | {"calls": 1e-8 * factor, "flops": 1e-9 * factor, "elements": 1e-9 * factor}
    kinds = {kind: list(row.values()) for kind in ("Conv", "MatMul", "Gemm", "Add", "Mul", "Relu", "Sub", "Transpose")}
    return Profile("board", "runtime", 1, kinds=kinds, **more).to_json()


def heard(**changes: Any) -> Report:
    """A device's report with data that every method can use."""
    shape = changes.pop("shape", (1, 8, 8))
    data = DataSummary(64, 16, list(shape), CLASSES, [16] * CLASSES, descriptor=[0.5, 1.0, 2.0])
    return report(**{"data": data, "free_bytes": 10**10, **changes})


def make(
    name: str, forecasts: Speeds | None = None, budget: Budget | None = None, **params: Any
) -> tuple[Method, Setting]:
    model, shape, usual = CASES.get(name, ("cnn-small", (1, 8, 8), {}))
    spec = ModelSpec(model, shape, CLASSES)
    entry = find(name.partition(" ")[0])
    born = Setting(
        spec,
        Optimizer(),
        initial_weights(zoo.create(spec, seed=1)),
        learning_rate=0.1,
        batch=8,
        epochs=1,
        seed=3,
        manifest=lambda structure: BUILDER.build(structure).manifest,
        forecasts=forecasts,
        budget=budget or Budget(),
    )
    return entry.make(from_dict(entry.params, {**cast(Any, usual), **params}, where="test"), born), born


def given(
    name: str, one: Report, *, other: Any = None, forecasts: Speeds | None = None, budget: Budget | None = None
) -> tuple[Assignment, int, Setting]:
    """What a device with this report is given beside one without limits: its assignment and the numbers it is sent."""
    method, born = make(name, forecasts, budget)
    shape = CASES.get(name, ("", (1, 8, 8), {}))[1]
    free = other or heard(shape=shape)
    speeds = forecasts
    if speeds is not None:
        for device, told in (("d-0", one), ("d-3", free)):
            speeds.hear(device, told)
    found = method.assign({"d-0": structs.replace(one, data=free.data), "d-3": free}, 1)
    emission = method.emit("d-0", found["d-0"])
    sent = sum(
        int(emission.masks[n].sum()) if n in emission.masks else value.size for n, value in emission.weights.items()
    )
    return found["d-0"], sent, born


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_device_with_less_traffic_to_spend_gets_less(name: str) -> None:
    whole, most, born = given(name, heard())
    limit = int(0.8 * cost_of(born, "d-0", report=heard(), assignment=whole).link_bytes)

    assignment, sent, _ = given(name, heard(round_bytes=limit))

    assert sent < most
    # The values down and, without indices, up again.
    assert 8 * sent <= limit
    assert assignment.recipe == whole.recipe


@pytest.mark.parametrize("name", FASTER)
def test_a_slower_device_gets_less(name: str) -> None:
    quick, most, _ = given(name, heard(profile=slow(1.0), round_s=10.0), forecasts=Speeds())
    sized, sent, born = given(name, heard(profile=slow(1.0)), forecasts=Speeds())
    speeds = Speeds()
    speeds.hear("d-0", heard(profile=slow(1.0)))
    seconds = cost_of(replace(born, forecasts=speeds), "d-0", report=heard(), assignment=quick).seconds
    assert seconds > 0

    # Half of the time that the whole model takes at this speed.
    less, fewer, _ = given(name, heard(profile=slow(1.0), round_s=0.6 * seconds), forecasts=Speeds())
    least, fewest, _ = given(name, heard(profile=slow(2.2), round_s=0.6 * seconds), forecasts=Speeds())

    assert sent == most
    assert fewest < fewer < most
    speeds.hear("d-0", heard(profile=slow(2.2)))
    kept = cost_of(replace(born, forecasts=speeds), "d-0", report=heard(), assignment=least).seconds
    assert kept <= 0.6 * seconds
    assert sized.structure == quick.structure != less.structure


@pytest.mark.parametrize("name", FASTER)
def test_a_device_with_less_memory_gets_less(name: str) -> None:
    whole, most, born = given(name, heard())
    need = cost_of(born, "d-0", report=heard(), assignment=whole).memory_bytes

    assignment, sent, _ = given(name, heard(free_bytes=need - 1))

    assert sent < most
    assert cost_of(born, "d-0", report=heard(), assignment=assignment).memory_bytes < need


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "pfedhn", "fedavg-masked", "fiarse", "framp"])
def test_where_no_size_saves_memory_the_batch_gives_way(name: str) -> None:
    whole, _, born = given(name, heard())
    need = cost_of(born, "d-0", report=heard(), assignment=whole).memory_bytes

    assignment, _, _ = given(name, heard(free_bytes=need - 1))

    assert 1 <= assignment.recipe.batch < whole.recipe.batch
    assert fits(born, "d-0", report=heard(free_bytes=need - 1), assignment=assignment)


@pytest.mark.parametrize("name", ["fedavg", "fiarse", "framp", "heterofl", "hyperflora", "pfedhn"])
def test_a_device_that_can_do_nothing_is_left_out_and_named_once(name: str, caplog: pytest.LogCaptureFixture) -> None:
    method, _ = make(name)
    for number in (1, 2):
        found = method.assign({"d-0": heard(free_bytes=1000), "d-3": heard()}, number)
        assert sorted(found) == ["d-3"]

    assert caplog.text.count("device d-0 takes no part") == 1


def test_the_runs_own_budget_counts_beside_the_devices() -> None:
    one, most, born = given("fedrolex", heard())
    cost = cost_of(born, "d-0", report=heard(), assignment=one)
    budget = Budget(link_bytes=cost.link_bytes // 2)

    _, sent, _ = given("fedrolex", heard(), budget=budget)

    assert sent < most


def test_what_a_device_really_took_counts_in_the_next_round() -> None:
    speeds = Speeds()
    method, born = make("fedrolex", speeds)
    told = heard(round_s=1.0)
    first = method.assign({"d-0": told}, 1)["d-0"]
    assert zoo.width_of(first.structure.spec) == 1.0

    # Eight steps of 0.15 s where one second is all there is.
    manifest = present(born.manifest)(first.structure)
    speeds.take("d-0", manifest, structs.replace(STATS, steps=8, train_s=1.2), batch=8)

    second = method.assign({"d-0": told}, 2)["d-0"]
    assert zoo.width_of(second.structure.spec) < 1.0


def test_a_slow_link_takes_of_the_seconds() -> None:
    speeds = Speeds()
    speeds.hear("d-0", heard(profile=slow(1.0, link={"bytes_per_s": 1000.0})))
    method, born = make("fedavg", speeds)
    assignment = method.assign({"d-0": heard()}, 1)["d-0"]

    cost = cost_of(born, "d-0", report=heard(), assignment=assignment)
    alone = cost_of(replace(born, forecasts=None), "d-0", report=heard(), assignment=assignment)

    assert cost.seconds > alone.link_bytes / 1000.0


def test_without_artifacts_everything_fits() -> None:
    method, born = make("fedrolex")
    assignment = method.assign({"d-0": heard()}, 1)["d-0"]
    blind = replace(born, manifest=None)

    found = largest_fitting(blind, "d-0", report=heard(free_bytes=1), sizes=(1, 2), make=lambda size: assignment)

    assert found is not None
    assert found.size == 2


def test_a_smaller_rank_is_a_part_of_the_larger() -> None:
    rng = np.random.default_rng(0)
    # Two gates of rank 3 over 4 inputs.
    full = {"l.lora_down": rng.normal(size=(6, 4)), "l.lora_up": rng.normal(size=(10, 3)), "head": np.ones(2)}

    cut = cut_rank(full, 2)
    padded = pad_rank(cut, 3)

    np.testing.assert_array_equal(cut["l.lora_up"], full["l.lora_up"][:, :2])
    np.testing.assert_array_equal(cut["l.lora_down"], full["l.lora_down"][[0, 1, 3, 4]])
    np.testing.assert_array_equal(padded["l.lora_down"][[0, 1, 3, 4]], cut["l.lora_down"])
    assert not padded["l.lora_down"][[2, 5]].any()
    assert not padded["l.lora_up"][:, 2].any()
    assert padded["head"] is full["head"]


def test_a_device_of_a_smaller_rank_teaches_the_first_components() -> None:
    method, born = make("hyperflora", rank=4)
    whole = method.assign({"d-0": heard()}, 1)["d-0"]
    limit = int(0.6 * cost_of(born, "d-0", report=heard(), assignment=whole).link_bytes)
    assignment = method.assign({"d-0": heard(round_bytes=limit)}, 1)["d-0"]
    sent = method.emit("d-0", assignment).weights
    ups = [name for name in sent if name.endswith("lora_up")]
    assert {sent[name].shape[1] for name in ups} == {2}

    change = {name: np.full_like(value, 0.1) for name, value in sent.items()}
    method.absorb("d-0", CheckedUpdate(change, STATS, assignment))
    assert method.advance()["hypernet_gradient"] > 0
    assert method.model_of("d-0")[0].model == "cnn-small"
