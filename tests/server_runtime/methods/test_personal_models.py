"""Methods for unlike models: what FedMD averages, FlexiFed shares, FedGH's head learns and FedKEMF fuses."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedwright.protocol.artifact import PUBLIC_LOGITS
from fedwright.protocol.errors import ConfigError
from fedwright.protocol.messages import DataSummary, Report, Stats
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.builder import initial_weights
from fedwright.server_runtime.methods.base import Assignment, CheckedUpdate
from fedwright.server_runtime.methods.baselines.fedgh import FedGH, head_names
from fedwright.server_runtime.methods.baselines.fedkemf import FedKEMF
from fedwright.server_runtime.methods.baselines.fedmd import FedMD
from fedwright.server_runtime.methods.baselines.flexifed import FlexiFed, layers_of, shared_layers
from fedwright.server_runtime.methods.params.personal_models import (
    FedGHParams,
    FedKEMFParams,
    FedMDParams,
    FlexiFedParams,
    PersonalModelParams,
)
from fedwright.server_runtime.methods.shared.personal_models import PersonalModels
from fedwright.server_runtime.public_data.examples import PublicData
from fedwright.server_runtime.spec import ModelSpec
from helpers.fleet import report, setting
from helpers.present import present

SHAPE, CLASSES = (1, 16, 16), 4
STATS = Stats(samples=10, steps=1, train_s=0.1, cpu_s=0.1, peak_rss_bytes=1)
SMALL, LARGE = "cnn1@0.2", "cnn2@0.2"


def said() -> Report:
    return report(data=DataSummary(samples=24, holdout=8, input_shape=list(SHAPE), classes=CLASSES))


FLEET = {"d-0": said(), "d-1": said()}


def make(kind: type[PersonalModels], params: Any, *, model: str = SMALL, labelled: bool = True) -> PersonalModels:
    spec = zoo.named(model, ModelSpec("", SHAPE, CLASSES))
    y = np.arange(12) % CLASSES if labelled else None
    public = PublicData(np.random.default_rng(3).random((12, *SHAPE), np.float32), y)
    return kind(params, setting(spec=spec, initial=initial_weights(zoo.create(spec, seed=1)), public=public))


def nothing(method: PersonalModels, device: str, assignment: Assignment) -> dict[str, NDArray[Any]]:
    return {name: np.zeros_like(value) for name, value in method.emit(device, assignment).weights.items()}


@pytest.mark.parametrize("labelled", [True, False], ids=["labelled", "unlabelled"])
def test_fedmd_takes_transfer_or_goes_straight_to_own_data(labelled: bool) -> None:
    method = make(FedMD, FedMDParams(PersonalModelParams((SMALL, LARGE))), labelled=labelled)
    plan = method.assign(FLEET, 1)["d-0"]
    assert plan.recipe.public == labelled
    assert plan.structure.objective.match_logits == 0
    emission = method.emit("d-0", plan)
    assert set(emission.public) == ({"x", "y"} if labelled else {"x"})


def test_fedmd_averages_logits_and_sends_the_mean_to_all() -> None:
    method = make(FedMD, FedMDParams(PersonalModelParams((SMALL, LARGE))))
    first = method.assign(FLEET, 1)
    for device, value in (("d-0", 1.0), ("d-1", 3.0)):
        relay = method.absorb(device, CheckedUpdate(nothing(method, device, first[device]), STATS, first[device]))
        assert present(relay).device == device
        assert present(relay).assignment.returns.logits == 12
        assert not present(relay).assignment.recipe.public
        tensors = nothing(method, device, present(relay).assignment) | {
            PUBLIC_LOGITS: np.full((12, CLASSES), value, np.float32)
        }
        assert method.absorb(device, CheckedUpdate(tensors, STATS, present(relay).assignment)) is None
    method.advance()
    plan = method.assign(FLEET, 2)["d-1"]
    assert plan.recipe.public
    assert (plan.structure.objective.cross_entropy, plan.structure.objective.match_logits) == (0.0, 1.0)
    np.testing.assert_array_equal(method.emit("d-1", plan).sides["target_logits"], np.full((12, CLASSES), 2.0))


def tensor(*shape: int) -> NDArray[Any]:
    return np.zeros(shape, np.float32)


ONE = {"a.w": tensor(3, 1), "a.b": tensor(3), "b.w": tensor(2, 3), "head.w": tensor(4, 2)}
TWO = {"a.w": tensor(3, 1), "a.b": tensor(3), "c.w": tensor(2, 3), "head.w": tensor(4, 2)}


@pytest.mark.parametrize(
    ("strategy", "wanted"),
    [
        ("basic", {"a.w": "xyz", "a.b": "xyz"}),
        ("clustered", {"a.w": "xyz", "a.b": "xyz", "b.w": "xy", "head.w": "xy"}),
        ("max", {"a.w": "xyz", "a.b": "xyz", "b.w": "xy", "head.w": "xy"}),
    ],
)
def test_flexifed_shares_what_is_common_from_the_input_on(strategy: Any, wanted: dict[str, str]) -> None:
    layers = {"x": layers_of(ONE), "y": layers_of(ONE), "z": layers_of(TWO)}
    shared = {n: "".join(who) for names, who in shared_layers(layers, strategy) for n in names if len(who) > 1}
    assert shared == wanted


def test_flexifed_max_goes_as_deep_as_each_pair_agrees() -> None:
    longer = {"a.w": tensor(3, 1), "a.b": tensor(3), "b.w": tensor(2, 3), "d.w": tensor(2, 2)}
    layers = {"x": layers_of(ONE), "y": layers_of(longer), "z": layers_of(TWO)}
    shared = {n: "".join(who) for names, who in shared_layers(layers, "max") for n in names if len(who) > 1}
    assert shared == {"a.w": "xyz", "a.b": "xyz", "b.w": "xy"}


def test_flexifed_averages_common_layers_only() -> None:
    method = make(FlexiFed, FlexiFedParams(PersonalModelParams((SMALL, LARGE))))
    for device, plan in method.assign(FLEET, 1).items():
        step = 1.0 if device == "d-0" else 3.0
        own = {n: np.full_like(v, step) for n, v in method.emit(device, plan).weights.items()}
        method.absorb(device, CheckedUpdate(own, STATS, plan))
    before = {device: dict(weights) for device, weights in method.weights.items()}
    assert method.advance()["tensors_averaged"] > 0
    first, head = "encoder.conv1.0.weight", "head.weight"
    wanted = (before["d-0"][first] + before["d-1"][first]) / 2
    for device in FLEET:
        np.testing.assert_allclose(method.weights[device][first], wanted, rtol=1e-5)
        np.testing.assert_array_equal(method.weights[device][head], before[device][head])


def test_fedgh_gives_unlike_models_one_head_and_steps_it_on_class_means() -> None:
    method = make(FedGH, FedGHParams(PersonalModelParams((SMALL, "cnn3@0.1")), server_rate=0.5))
    plans = method.assign(FLEET, 1)
    assert plans["d-1"].structure.spec.model.startswith("stitched:cnn3@0.1#0|")
    weights = {device: method.emit(device, plan).weights for device, plan in plans.items()}
    heads = [weights[d][head_names(method.specs[d], weights[d])["weight"]] for d in FLEET]
    np.testing.assert_array_equal(heads[0], heads[1])
    rows = np.zeros((CLASSES, heads[0].shape[1]), np.float32)
    rows[2] = 1.0
    counts = np.array([0, 0, 5, 0], np.float32)
    change = nothing(method, "d-0", plans["d-0"]) | {"prototypes": rows, "prototype_counts": counts}
    method.absorb("d-0", CheckedUpdate(change, STATS, plans["d-0"]))
    bias = weights["d-0"]["head.bias"]
    method.advance()
    # H ← H - β (p - onehot) x' for the one mean that there is
    logits = heads[0] @ rows[2] + bias
    p = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    p[2] -= 1
    after = method.emit("d-0", plans["d-0"]).weights
    np.testing.assert_allclose(after["head.weight"], heads[0] - 0.5 * np.outer(p, rows[2]), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(after["head.bias"], bias - 0.5 * p, rtol=1e-4, atol=1e-6)


def test_fedgh_needs_a_run_model_with_a_head() -> None:
    with pytest.raises(ConfigError, match="cannot be cut"):
        make(FedGH, FedGHParams(), model="python:helpers.own_module:make_branching")


def test_fedkemf_lets_models_teach_each_other_and_fuses_the_common_one() -> None:
    method = make(FedKEMF, FedKEMFParams(PersonalModelParams((SMALL, LARGE)), fuse_epochs=0), labelled=False)
    plans = method.assign(FLEET, 1)
    assert plans["d-1"].structure.objective.teacher == method.setting.spec
    for device, step in (("d-0", 1.0), ("d-1", 3.0)):
        relay = method.absorb(device, CheckedUpdate(nothing(method, device, plans[device]), STATS, plans[device]))
        network = present(relay).assignment.structure
        assert (network.spec, network.objective.teacher) == (method.setting.spec, method.specs[device])
        sent = method.emit(device, present(relay).assignment)
        assert {n.removeprefix("teacher/") for n in sent.sides} == method.weights[device].keys()
        moved = {n: np.full_like(v, step) for n, v in sent.weights.items()}
        method.absorb(device, CheckedUpdate(moved, STATS, present(relay).assignment))
    method.advance()
    knowledge = method.emit("d-0", plans["d-0"]).sides
    for name, value in method.setting.initial.items():
        np.testing.assert_allclose(knowledge[f"teacher/{name}"], value + 2.0, rtol=1e-5)
