"""Formulas of methods that average whole models, by hand and against torch."""

from typing import Any

import numpy as np
import pytest
import torch

from fedwright.protocol.errors import ConfigError
from fedwright.protocol.messages import DataSummary, Stats
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.builder import initial_weights
from fedwright.server_runtime.methods.base import Assignment, CheckedUpdate, Method
from fedwright.server_runtime.methods.params.averaging import AdaptiveParams, FedAvgMParams, PFedMeParams
from fedwright.server_runtime.methods.registry import find
from fedwright.server_runtime.spec import ModelSpec
from helpers.fleet import report, setting

SPEC = ModelSpec("mlp", (1, 4, 4), 3)


def make(name: str, params: Any = None, *, spec: ModelSpec = SPEC, **changes: Any) -> Method:
    initial = initial_weights(zoo.create(spec, seed=1))
    entry = find(name)
    return entry.make(params or entry.params(), setting(spec=spec, initial=initial, **changes))


def told(samples: int = 24) -> Any:
    return report(data=DataSummary(samples=samples, holdout=8, input_shape=[1, 4, 4], classes=3))


def changed(assignment: Assignment, change: float, *, samples: int = 10, steps: int = 4) -> CheckedUpdate:
    """Every entry of every parameter moved by `change`."""
    weights = initial_weights(zoo.create(assignment.structure.spec, seed=1))
    tensors = {name: np.full_like(v, change) for name, v in weights.items() if name not in assignment.returns.personal}
    stats = Stats(samples=samples, steps=steps, train_s=0.1, cpu_s=0.1, peak_rss_bytes=1)
    return CheckedUpdate(tensors, stats, assignment)


def play(method: Method, changes: dict[str, float], number: int = 1, **of_stats: int) -> None:
    plan = method.assign({device: told() for device in changes}, number)
    for device, change in sorted(changes.items()):
        method.absorb(device, changed(plan[device], change, **of_stats))
    method.advance()


def moved(method: Method) -> float:
    """How far the common model is from where it began; the same in every entry here."""
    start = initial_weights(zoo.create(method.model_of("")[0], seed=1))
    away = {name: value - start[name] for name, value in method.model_of("")[1].items()}
    values = np.concatenate([value.reshape(-1) for value in away.values()])
    assert np.ptp(values) < 1e-5
    return float(values.mean())


def test_fedavgm_takes_the_steps_of_torch_sgd_with_momentum() -> None:
    method = make("fedavgm", FedAvgMParams(server_rate=0.5, momentum=0.9))
    w = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=0.5, momentum=0.9)
    for number, change in enumerate([0.2, -0.1, 0.3], start=1):
        play(method, {"a": change, "b": change}, number)
        w.grad = torch.tensor([-change])
        optimizer.step()

    assert moved(method) == pytest.approx(w.item(), abs=1e-6)


@pytest.mark.parametrize("name", ["fedadam", "fedyogi"])
def test_adaptive_servers_follow_algorithm_2(name: str) -> None:
    method = make(name, AdaptiveParams(server_rate=0.1, beta1=0.5, beta2=0.75, tau=0.1))
    w, m, v = 0.0, 0.0, 0.01
    for number, change in enumerate([0.2, 0.02, -0.1], start=1):
        play(method, {"a": change, "b": change}, number)
        m = 0.5 * m + 0.5 * change
        square = change**2
        v = 0.75 * v + 0.25 * square if name == "fedadam" else v - 0.25 * square * np.sign(v - square)
        w += 0.1 * m / (v**0.5 + 0.1)

    assert moved(method) == pytest.approx(w, abs=1e-6)


@pytest.mark.parametrize("name", ["fedavgm", "fedadam", "fedyogi", "scaffold"])
def test_a_round_without_updates_is_no_step_of_the_server(name: str) -> None:
    method = make(name)
    play(method, {"a": 0.2})
    before = moved(method)
    method.assign({"a": told()}, 2)
    method.advance()

    assert moved(method) == before


def test_scaffold_learns_control_variates_by_option_2() -> None:
    # Four steps at 0.1: c_i = -Δ_i / 0.4; c is their mean over two devices; the next round starts from c - c_i.
    method = make("scaffold")
    play(method, {"a": 0.4, "b": -0.2}, steps=4)
    plan = method.assign({"a": told(), "b": told()}, 2)

    sides = method.emit("a", plan["a"]).sides
    assert moved(method) == pytest.approx(0.1)
    assert {round(float(value.mean()), 5) for value in sides.values()} == {round(-0.25 - -1.0, 5)}
    # c_a⁺ = c_a - c - Δ / 0.4 = -1 + 0.25 - 0.5 = -1.25; c moves by the change of c_a over two devices.
    method.absorb("a", changed(plan["a"], 0.2))
    method.advance()
    correction = method.emit("b", plan["b"]).sides
    assert {round(float(value.mean()), 5) for value in correction.values()} == {round((-0.25 - 0.125) - 0.5, 5)}


def test_scaffold_counts_devices_that_did_not_take_part() -> None:
    method = make("scaffold")
    method.meet({device: told() for device in ("a", "b", "c", "d")})
    play(method, {"a": 0.4}, steps=4)
    plan = method.assign({"b": told()}, 2)

    # c = c_a / 4 with c_a = -1.
    sides = method.emit("b", plan["b"]).sides
    assert {round(float(value.mean()), 5) for value in sides.values()} == {-0.25}
    assert plan["b"].structure.optimizer.momentum == 0


@pytest.mark.parametrize(
    ("name", "private"),
    [("head-private", {"head"}), ("encoder-private", {"encoder"})],
)
def test_private_layers_are_not_sent_and_not_averaged(name: str, private: set[str]) -> None:
    method = make(name)
    kept = method.personal_layers("a")
    plan = method.assign({"a": told()}, 1)
    before = dict(method.model_of("a")[1])
    play(method, {"a": 0.5})

    assert {layer.split(".")[0] for layer in kept} == private
    assert tuple(plan["a"].returns.personal) == kept
    for layer, value in method.model_of("a")[1].items():
        np.testing.assert_allclose(value, before[layer] + (0.0 if layer in kept else 0.5), atol=1e-6)


def test_fedbn_keeps_norms_and_their_statistics() -> None:
    method = make("fedbn", spec=ModelSpec("resnet8", (1, 8, 8), 3))
    kept = method.personal_layers("a")
    layers = zoo.create(method.model_of("")[0], seed=0).named_modules()
    norms = {name for name, layer in layers if isinstance(layer, torch.nn.BatchNorm2d)}

    assert {layer.rpartition(".")[0] for layer in kept} == norms
    assert any(layer.endswith("running_mean") for layer in kept)


def test_a_model_without_norms_is_refused_by_fedbn() -> None:
    with pytest.raises(ConfigError, match="none of its tensors would be private"):
        make("fedbn")


@pytest.mark.parametrize(("name", "steps"), [("per-fedavg", 6), ("pfedme", 10)])
def test_steps_come_in_whole_groups(name: str, steps: int) -> None:
    # 20 samples in batches of 8, twice: six steps, which are three pairs, or two groups of five.
    method = make(name, batch=8, epochs=2)

    assert method.assign({"a": told(20)}, 1)["a"].recipe.steps == steps


def test_pfedme_mixes_and_counts_every_device_the_same() -> None:
    method = make("pfedme", PFedMeParams(mixing=0.5))
    plan = method.assign({"a": told(), "b": told()}, 1)
    method.absorb("a", changed(plan["a"], 0.4, samples=1000))
    method.absorb("b", changed(plan["b"], 0.0, samples=10))
    method.advance()

    assert moved(method) == pytest.approx(0.1)
    objective = plan["a"].structure.objective
    assert (objective.envelope, objective.envelope_steps, objective.envelope_rate) == (15.0, 5, 0.03)


def test_pfedme_refuses_steps_beyond_the_personal_model() -> None:
    with pytest.raises(ConfigError, match=r"rate \* strength"):
        PFedMeParams(strength=15.0, rate=0.1)
