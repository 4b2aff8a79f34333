"""Losses of users: traced into the graph, the same steps as torch's, and refused in a sentence."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedwright.protocol.errors import ConfigError, FedwrightError
from fedwright.server_runtime.artifacts.builder import build, initial_weights
from fedwright.server_runtime.artifacts.own_loss import load_loss
from fedwright.server_runtime.check_run import check_server
from fedwright.server_runtime.config import ModelSection
from fedwright.server_runtime.spec import ModelSpec, Objective, Structure
from fedwright.simulation.simulate import simulate
from helpers.graphs import Stepper
from helpers.simulation import make_config
from helpers.task_models import make_numbers, make_segmenter

LOSSES = "python:helpers.own_losses:"
RATE = 0.1

# loss: (labels, outputs of the model, classes or targets of the data)
CASES = {
    "huber": ("regress", 2, 2),
    "spread": ("regress", 4, 2),
    "pinball": ("regress", 3, 1),
    "focal": ("classify", 3, 3),
    "smooth": ("classify", 3, 3),
    "dice": ("segment", 2, 2),
    "absolute": ("regress", 2, 2),
    "rounded": ("regress", 2, 2),
    "counts": ("regress", 2, 2),
    "weighed": ("multilabel", 2, 2),
    "some": ("segment", 2, 2),
}


def _batch(labels: str, classes: int, samples: int) -> dict[str, Any]:
    rng = np.random.default_rng(samples)
    shape = (samples, 1, 6, 6) if labels == "segment" else (samples, 4)
    x = rng.standard_normal(shape).astype(np.float32)
    if labels == "multilabel":
        return {"x": x, "y": rng.integers(0, 2, (samples, classes)).astype(np.float32)}
    if labels == "regress":
        return {"x": x, "y": rng.standard_normal((samples, classes)).astype(np.float32)}
    return {"x": x, "y": rng.integers(0, classes, (samples, 6, 6) if labels == "segment" else samples)}


def _case(loss: str) -> tuple[Any, Structure]:
    labels, outputs, classes = CASES[loss]
    shape = (1, 6, 6) if labels == "segment" else (4,)
    make = make_segmenter if labels == "segment" else make_numbers
    spec = ModelSpec("python:helpers.task_models:any", shape, classes, goal=labels, loss=LOSSES + loss)
    torch.manual_seed(0)
    return make(input_shape=shape, classes=outputs), Structure(spec)


@pytest.mark.parametrize("samples", [1, 5])
@pytest.mark.parametrize("loss", CASES)
def test_a_step_is_torchs_step(loss: str, samples: int) -> None:
    module, structure = _case(loss)
    labels, _, classes = CASES[loss]
    batch = _batch(labels, classes, samples)
    artifact = build(structure, module)

    stepper = Stepper(artifact, initial_weights(module))
    found = float(stepper.step(batch, learning_rate=RATE)["loss"])

    wanted = load_loss(LOSSES + loss)(module.train()(torch.from_numpy(batch["x"])), torch.from_numpy(batch["y"]))
    wanted.backward()
    assert found == pytest.approx(wanted.item(), rel=1e-5)
    for name, value in module.named_parameters():
        assert value.grad is not None
        moved = (value - RATE * value.grad).detach().numpy()
        np.testing.assert_allclose(stepper.slots[name], moved, atol=2e-6)


def test_a_proximal_term_stands_beside_it() -> None:
    module, structure = _case("huber")

    artifact = build(replace(structure, objective=Objective(proximal=0.1)), module)

    assert any(side.name.startswith("centre/") for side in artifact.manifest.sides)


@pytest.mark.parametrize(
    ("loss", "says"),
    [
        ("by_sample", r"returns float32 of shape \[2, 2\]; it must return one number"),
        ("decides", "decides by values or by the number of samples in Python"),
        ("in_numpy", "returns a float; it must return a tensor of one number"),
        ("deaf", "has no gradient with respect to the model's outputs"),
        ("margin", "torch's own losses it may use binary_cross_entropy, "),
        ("breaks", r"fails on outputs and targets of shapes \['samples', 2\] and \['samples', 2\]: RuntimeError"),
    ],
)
def test_what_cannot_be_a_loss_is_refused_in_a_sentence(loss: str, says: str) -> None:
    module, structure = _case("huber")
    structure = replace(structure, spec=replace(structure.spec, loss=LOSSES + loss))

    with pytest.raises(FedwrightError, match=says):
        build(structure, module)


def test_names_that_lead_nowhere(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must look like python:module:name"):
        ModelSection(task="python:helpers")
    with pytest.raises(ConfigError, match="labels is for a loss of your own, but task is 'regress'"):
        ModelSection(task="regress", labels="regress")
    with pytest.raises(ConfigError, match="task 'dream' is not known"):
        ModelSection(task=LOSSES + "huber", labels="dream")
    with pytest.raises(ConfigError, match="it is a int; it must be a function of outputs and targets"):
        load_loss(LOSSES + "number")
    with pytest.raises(ConfigError, match=r"has no 'hubre'; did you mean 'huber'"):
        check_server(make_config(tmp_path, model={"task": LOSSES + "hubre"})[0])
    with pytest.raises(ConfigError, match=r"fedmd is about single classes, but model.task is of a loss of your own"):
        make_config(tmp_path, method={"name": "fedmd"}, model={"task": LOSSES + "focal", "labels": "classify"})


@pytest.mark.parametrize("method", ["fedavg", "fedrolex", "framp"])
def test_a_fleet_learns_by_its_own_loss(tmp_path: Path, method: str) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((80, 3)).astype(np.float32)
    np.savez(tmp_path / "numbers.npz", x=x, y=(x @ [[1.0], [-1.0], [0.5]]).astype(np.float32))
    config = make_config(
        tmp_path,
        rounds=4,
        method={"name": method, **({"sizes": [1.0, 0.5]} if method == "framp" else {})},
        model={"model": "python:helpers.task_models:make_numbers", "task": LOSSES + "huber"},
        train={"batch": 8, "epochs": 3, "learning_rate": 0.1},
        simulate={"devices": 2, "data": f"npz:{tmp_path}/numbers.npz", "partition": "iid", "rows": 80},
    )

    found = simulate(*config)

    figures = [entry.summary() for entry in found.evaluations]
    assert figures[-1]["mae"] < figures[0]["mae"]
