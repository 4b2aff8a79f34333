"""Losses of every task against torch: one plain step moves each weight by the learning rate times torch's gradient."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedwright.protocol.errors import BuildError, ConfigError
from fedwright.protocol.goals import GOALS, find_goal
from fedwright.server_runtime.artifacts.builder import build, initial_weights
from fedwright.server_runtime.methods import registry
from fedwright.server_runtime.methods.goal_check import ANY_GOAL, check_goal
from fedwright.server_runtime.spec import ModelSpec, Objective, Structure
from helpers.graphs import Stepper
from helpers.task_models import make_numbers, make_reader, make_segmenter

RATE = 0.1
RNG = np.random.default_rng(1)
IMAGES, TEXT = RNG.standard_normal((3, 1, 4, 4)).astype(np.float32), RNG.integers(0, 5, (3, 6))
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
CASES: dict[str, tuple[Any, Any, Any, int, Loss]] = {
    "regress": (make_numbers, IMAGES, RNG.standard_normal((3, 2)).astype(np.float32), 2, functional.mse_loss),
    "forecast": (make_numbers, IMAGES, RNG.standard_normal((3, 1)).astype(np.float32), 1, functional.mse_loss),
    "multilabel": (
        make_numbers,
        IMAGES,
        RNG.integers(0, 2, (3, 4)).astype(np.float32),
        4,
        functional.binary_cross_entropy_with_logits,
    ),
    "segment": (make_segmenter, IMAGES, RNG.integers(0, 3, (3, 4, 4)), 3, functional.cross_entropy),
    "language": (
        make_reader,
        TEXT,
        RNG.integers(0, 5, (3, 6)),
        5,
        lambda z, y: functional.cross_entropy(z.flatten(0, 1), y.flatten()),
    ),
}


def _case(goal: str) -> tuple[nn.Module, Structure, dict[str, Any]]:
    make, x, y, outputs, _ = CASES[goal]
    torch.manual_seed(2)
    module = make(input_shape=x.shape[1:], classes=outputs)
    spec = ModelSpec("python:helpers.task_models:own", x.shape[1:], outputs, goal=goal)
    return module, Structure(spec), {"x": x, "y": y}


@pytest.mark.parametrize("goal", CASES)
def test_a_step_is_that_of_torch(goal: str) -> None:
    module, structure, batch = _case(goal)
    artifact = build(structure, module)
    stepper = Stepper(artifact, initial_weights(module))

    loss = float(stepper.step(batch, learning_rate=RATE)["loss"])

    wanted = CASES[goal][4](module.train()(torch.from_numpy(batch["x"])), torch.from_numpy(batch["y"]))
    wanted.backward()
    assert artifact.manifest.goal == goal
    assert loss == pytest.approx(wanted.item(), rel=1e-5)
    for name, value in module.named_parameters():
        assert value.grad is not None
        moved = (value - RATE * value.grad).detach().numpy()
        np.testing.assert_allclose(stepper.slots[name], moved, atol=2e-6)


def test_a_term_about_classes_is_refused() -> None:
    module, structure, _ = _case("regress")
    with pytest.raises(BuildError, match="prototypes is about single classes, but the run's task is regress"):
        build(replace(structure, objective=Objective(prototypes=0.1)), module)


@pytest.mark.parametrize(
    ("goal", "message"),
    [
        ("regress", r"returns logits of shape \(-1, 2\) but there are 3 targets"),
        ("segment", "needs classes at every place"),
    ],
)
def test_a_wrong_output_is_named(goal: str, message: str) -> None:
    module, structure, _ = _case("regress")
    with pytest.raises(BuildError, match=message):
        build(replace(structure, spec=replace(structure.spec, goal=goal, classes=3)), module)


def test_unknown_tasks_and_methods_about_classes() -> None:
    with pytest.raises(ConfigError, match="task 'dream' is not known; choose one of classify, multilabel"):
        find_goal("dream")
    with pytest.raises(ConfigError, match="method fedmd is about single classes"):
        check_goal("fedmd", None, "segment", known=True)
    check_goal("fedmd", None, "classify", known=True)
    check_goal("own", None, "segment", known=False)
    assert set(ANY_GOAL) <= set(registry.METHODS)
    assert {goal for goal in GOALS if goal != "classify"} == CASES.keys()
