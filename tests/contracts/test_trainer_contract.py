"""Every trainer keeps to its interface; the classic one, which needs its own environment, in tests/e2e."""

import numpy as np
import pytest

from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.builder import build, initial_weights
from fedwright.server_runtime.artifacts.structure import ModelSpec, Optimizer, Structure
from helpers import trainer_contract

CASES = {
    "mlp, momentum": (ModelSpec("mlp", (12,), 4), Optimizer(momentum=0.9)),
    "cnn, adamw": (ModelSpec("cnn-small", (1, 8, 8), 4), Optimizer("adamw", weight_decay=0.01)),
    "resnet8 with running statistics": (ModelSpec("resnet8", (3, 8, 8), 4), Optimizer()),
}


@pytest.fixture(scope="module", params=CASES.values(), ids=CASES)
def folder(request, tmp_path_factory):
    spec, optimizer = request.param
    folder = tmp_path_factory.mktemp("trainer")
    module = zoo.create(spec, seed=1)
    rng = np.random.default_rng(5)
    batch = {"x": rng.normal(size=(12, *spec.input_shape)).astype(np.float32), "y": rng.integers(0, 4, 12)}
    built = {"portable": build(Structure(spec, optimizer=optimizer), module)}
    trainer_contract.write_folder(folder, built, weights=initial_weights(module), batch=batch)
    return folder


@pytest.mark.parametrize("backend", ["portable"])
@pytest.mark.parametrize("check", trainer_contract.CHECKS, ids=lambda check: check.__name__)
def test_contract(check, backend, folder):
    check(trainer_contract.Subject(folder, backend))
