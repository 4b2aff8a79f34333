"""Every trainer keeps to its interface, and all do the same; the classic one, in its own environment, in tests/e2e."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedwright.device_runtime.data.local import LocalData
from fedwright.device_runtime.train import loop
from fedwright.device_runtime.train.base import Trainer
from fedwright.device_runtime.train.check import check_artifact
from fedwright.device_runtime.train.portable import PortableTrainer
from fedwright.protocol.messages import Recipe
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.builder import build, initial_weights
from fedwright.server_runtime.spec import ModelSpec, Objective, Optimizer, Structure
from helpers import trainer_contract
from helpers.torch_trainer import TorchTrainer, proximal

CASES = {
    "mlp, momentum": (ModelSpec("mlp", (12,), 4), Optimizer(momentum=0.9)),
    "cnn, adamw": (ModelSpec("cnn-small", (1, 8, 8), 4), Optimizer("adamw", weight_decay=0.01)),
    "resnet8 with running statistics": (ModelSpec("resnet8", (3, 8, 8), 4), Optimizer()),
}


def data_for(spec: ModelSpec, n: int = 20) -> LocalData:
    # A draw at which torch itself, begun a rounding away, ends within 1e-5 of where it did; at some it ends 1e-3 away.
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(n, *spec.input_shape)).astype(np.float32), np.arange(n) % spec.classes
    return LocalData(x, y, x[:6], y[:6], spec.classes, (n // spec.classes,) * spec.classes, spec.input_shape)


@pytest.fixture(scope="module", params=CASES.values(), ids=list(CASES))
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelSpec, Optimizer, Path]:
    """A structure with its weights and a batch in a folder."""
    spec, optimizer = request.param
    folder = tmp_path_factory.mktemp("trainer")
    module = zoo.create(spec, seed=1)
    data = data_for(spec, 12)
    built = {"portable": build(Structure(spec, optimizer=optimizer), module)}
    trainer_contract.write_folder(
        folder, built, weights=initial_weights(module), batch={"x": data.x, "y": data.y.copy()}
    )
    return spec, optimizer, folder


def make_trainer(case: tuple[ModelSpec, Optimizer, Path], backend: str) -> Trainer:
    spec, optimizer, folder = case
    if backend == "torch":
        return TorchTrainer(zoo.create(spec, seed=2), optimizer)
    return trainer_contract.make_trainer(folder, backend)


@pytest.mark.parametrize("backend", ["portable", "torch"])
@pytest.mark.parametrize("check", trainer_contract.CHECKS, ids=lambda check: check.__name__)
def test_contract(check: Callable[..., Any], backend: str, case: tuple[ModelSpec, Optimizer, Path]) -> None:
    check(trainer_contract.Subject(case[2], backend, trainer=make_trainer(case, backend)))


def change(trainer: Trainer, start: dict[str, NDArray[Any]]) -> NDArray[Any]:
    """All that training changed, as one vector."""
    now = trainer.weights()
    return np.concatenate([(now[name] - start[name]).ravel() for name in sorted(start)])


def assert_same_update(
    first: Trainer,
    second: Trainer,
    start: dict[str, NDArray[Any]],
    *,
    ratio: float,
) -> None:
    one, two = change(first, start), change(second, start)
    assert np.linalg.norm(one) > 1e-3
    assert np.linalg.norm(one - two) <= ratio * np.linalg.norm(one)


RECIPE = Recipe(batch=8, learning_rate=0.01, seed=3, epochs=2)


def test_the_same_task_gives_the_same_update(case: tuple[ModelSpec, Optimizer, Path]) -> None:
    data, start = data_for(case[0]), trainer_contract.Subject(case[2], "portable").weights
    portable, torch = make_trainer(case, "portable"), make_trainer(case, "torch")
    results = []
    for trainer in (portable, torch):
        trainer.load(start)
        results.append(loop.train(trainer, data, RECIPE))

    assert results[0].loss_first == pytest.approx(results[1].loss_first, abs=1e-5)
    assert_same_update(portable, torch, start, ratio=1e-3)
    logits = [trainer.predict({"x": data.x})[0] for trainer in (portable, torch)]
    embeddings = [trainer.predict({"x": data.x})[1] for trainer in (portable, torch)]
    first, second = logits
    assert np.allclose(first, second, atol=1e-3)
    first, second = embeddings
    assert np.allclose(first, second, atol=1e-3)


def test_a_snapshot_of_one_backend_continues_on_the_other(case: tuple[ModelSpec, Optimizer, Path]) -> None:
    data, start = data_for(case[0]), trainer_contract.Subject(case[2], "portable").weights
    first, second = make_trainer(case, "torch"), make_trainer(case, "portable")
    first.load(start)
    loop.train(first, data, RECIPE)
    second.restore(first.snapshot())
    assert second.snapshot().keys() == first.snapshot().keys()

    for trainer in (first, second):
        loop.train(trainer, data, RECIPE)

    assert_same_update(first, second, start, ratio=1e-3)


def test_a_proximal_term_pulls_alike_on_both() -> None:
    spec, optimizer = CASES["mlp, momentum"]
    module = zoo.create(spec, seed=1)
    start = initial_weights(module)
    sides = {f"centre/{name}": np.zeros_like(value) for name, value in start.items()}
    structure = Structure(spec, objective=Objective(proximal=0.5), optimizer=optimizer)
    portable = PortableTrainer(build(structure, module), sides=sides)
    torch = TorchTrainer(zoo.create(spec, seed=2), optimizer, penalty=proximal(0.5), sides=sides)
    plain = TorchTrainer(zoo.create(spec, seed=2), optimizer)
    for trainer in (portable, torch, plain):
        trainer.load(start)
        loop.train(trainer, data_for(spec), RECIPE)

    assert_same_update(portable, torch, start, ratio=1e-4)
    assert np.linalg.norm(change(torch, start) - change(plain, start)) > 1e-2


def test_a_frozen_base_is_supplied_from_memory_and_only_the_head_moves() -> None:
    spec, optimizer = CASES["resnet8 with running statistics"]
    module = zoo.create(spec, seed=1)
    artifact = build(Structure(spec, optimizer=optimizer, trainable=("head",)), module)
    whole = {name: value.detach().numpy().copy() for name, value in module.state_dict().items()}
    frozen = {tensor.name: whole[tensor.name] for tensor in artifact.manifest.frozen}
    start = {slot.name: whole[slot.name] for slot in artifact.manifest.slots if slot.role != "optimizer"}
    check_artifact(artifact, batch=8)

    portable = PortableTrainer(artifact, frozen=frozen)
    torch = TorchTrainer(module, optimizer, trainable=("head",))
    for trainer in (portable, torch):
        trainer.load(start)
        loop.train(trainer, data_for(spec), RECIPE)

    assert set(start) == {"head.weight", "head.bias"}
    assert_same_update(portable, torch, start, ratio=1e-3)
    logits = [trainer.predict({"x": data_for(spec).x})[0] for trainer in (portable, torch)]
    first, second = logits
    assert np.allclose(first, second, atol=1e-4)
