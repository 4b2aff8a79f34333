"""Steps in groups, a linear term and correlated logits: graphs against loops written with torch."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedwright.server_runtime.artifacts.builder import build, initial_weights
from fedwright.server_runtime.spec import Objective, Optimizer
from helpers.graphs import Stepper, collect, graph_gradients, relative_error, structure_of

RATE = 0.1


def module_of(seed: int = 3) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))


def batches(steps: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(4)
    return [{"x": rng.standard_normal((5, 6)).astype(np.float32), "y": rng.integers(0, 4, 5)} for _ in range(steps)]


def gradients(module: nn.Module, batch: dict[str, Any]) -> list[Tensor]:
    loss = functional.cross_entropy(module(torch.from_numpy(batch["x"])), torch.from_numpy(batch["y"]))
    return list(torch.autograd.grad(loss, list(module.parameters())))


def values(module: nn.Module) -> list[Tensor]:
    return [value.detach().clone() for value in module.parameters()]


def write(module: nn.Module, new: list[Tensor]) -> None:
    with torch.no_grad():
        for value, wanted in zip(module.parameters(), new, strict=True):
            value.copy_(wanted)


def by_graph(module: nn.Module, objective: Objective, steps: int, optimizer: Optimizer) -> dict[str, Any]:
    structure = structure_of((6,), 4, objective=objective, optimizer=optimizer)
    stepper = Stepper(build(structure, module), initial_weights(module))
    for batch in batches(steps):
        stepper.step(batch, learning_rate=RATE)
    return stepper.slots


# Momentum is the run's own and has no place in these steps.
@pytest.mark.parametrize("optimizer", [Optimizer(), Optimizer(momentum=0.9)], ids=["sgd", "momentum"])
def test_pairs_of_steps_take_the_gradient_from_where_the_first_ended(optimizer: Optimizer) -> None:
    module = module_of()

    slots = by_graph(module, Objective(meta_rate=0.05), 6, optimizer)

    twin = copy.deepcopy(module)
    for first, second in zip(batches(6)[0::2], batches(6)[1::2], strict=True):
        start = values(twin)
        write(twin, [w - 0.05 * g for w, g in zip(start, gradients(twin, first), strict=True)])
        write(twin, [w - RATE * g for w, g in zip(start, gradients(twin, second), strict=True)])
    for name, wanted in initial_weights(twin).items():
        np.testing.assert_allclose(slots[name], wanted, rtol=2e-5, atol=1e-5, err_msg=name)


def test_groups_of_steps_follow_the_moreau_envelope() -> None:
    module, strength, inner, rate = module_of(), 2.0, 3, 0.2

    objective = Objective(envelope=strength, envelope_steps=inner, envelope_rate=rate)
    slots = by_graph(module, objective, 6, Optimizer())

    twin, given = copy.deepcopy(module), batches(6)
    for group in (given[:3], given[3:]):
        centre = values(twin)
        for batch in group:
            theta, grads = values(twin), gradients(twin, batch)
            moves = [g + strength * (t - w) for t, w, g in zip(theta, centre, grads, strict=True)]
            write(twin, [t - RATE * move for t, move in zip(theta, moves, strict=True)])
        write(twin, [w - rate * strength * (w - t) for w, t in zip(centre, values(twin), strict=True)])
    for name, wanted in initial_weights(twin).items():
        np.testing.assert_allclose(slots[name], wanted, rtol=2e-5, atol=1e-5, err_msg=name)


def test_a_linear_term_adds_its_correction_to_the_gradient() -> None:
    module, (batch,) = module_of(), batches(1)
    rng = np.random.default_rng(7)
    sides = {f"correction/{n}": rng.normal(size=w.shape).astype(np.float32) for n, w in initial_weights(module).items()}

    _, found = graph_gradients(module, batch, 4, objective=Objective(linear=True), sides=sides)

    plain = dict(zip(initial_weights(module), gradients(module, batch), strict=True))
    for name, gradient in plain.items():
        np.testing.assert_allclose(found[name], gradient.numpy() + sides[f"correction/{name}"], rtol=1e-5, atol=1e-6)


def test_correlated_logits_equal_torch() -> None:
    module, (batch,) = module_of(), batches(1)
    target = np.random.default_rng(8).standard_normal((5, 4)).astype(np.float32)

    found = graph_gradients(
        module,
        batch | {"target_logits": target},
        4,
        objective=Objective(cross_entropy=0.0, correlate=0.5, correlate_apart=0.02),
    )

    twin = copy.deepcopy(module).double()
    logits, wanted = twin(torch.from_numpy(batch["x"]).double()), torch.from_numpy(target).double()
    # The correlation of columns u of the logits and v of the target, as numpy has it.
    both = torch.corrcoef(torch.cat([logits.T, wanted.T]))[:4, 4:]
    beside = (1 - torch.eye(4)).bool()
    loss = ((1 - torch.diagonal(both)) ** 2).sum() + 0.02 * ((1 + both[beside]) ** 2).sum()
    value, wanted_gradients = collect(0.5 * loss, twin)
    assert found[0] == pytest.approx(value, rel=1e-4)
    assert relative_error(found[1], wanted_gradients) < 1e-4
