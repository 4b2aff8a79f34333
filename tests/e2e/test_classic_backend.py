"""The classic backend in its own environment gives the portable one's update; there, too, is our oldest onnxruntime."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from fedwright.device_runtime.train.classic import ClassicTrainer
from fedwright.device_runtime.train.classic_check import check_classic
from fedwright.protocol import tensors
from fedwright.protocol.artifact import Artifact, file_info
from fedwright.protocol.classic_artifact import ClassicFiles, pack_files, unpack_files
from fedwright.protocol.errors import BadArtifact, BuildError, DeviceError, OverBudget
from fedwright.protocol.messages import Recipe
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.builder import build, initial_weights
from fedwright.server_runtime.artifacts.classic import build_classic
from fedwright.server_runtime.spec import ModelSpec, Objective, Optimizer, Structure
from helpers import one_task, trainer_contract
from helpers.classic_environment import classic_python
from helpers.tools import REPO, run

pytestmark = [pytest.mark.classic, pytest.mark.slow, pytest.mark.timeout(900)]

LENET = ModelSpec("lenet", (1, 8, 8), 10)
STEPS = 20


@pytest.fixture(scope="module")
def python(wheel: Path) -> Path:
    return classic_python(wheel)


@pytest.fixture(scope="module")
def artifact(python: Path) -> Artifact:
    return build_classic(Structure(LENET), python=python)


@pytest.fixture(scope="module")
def share() -> dict[str, NDArray[Any]]:
    digits = load_digits()
    return {"x": (digits.images[:200, None] / 16).astype(np.float32), "y": digits.target[:200].astype(np.int64)}


def in_environment(python: Path, *arguments: str) -> str:
    """Standard output of a program in the classic environment, with this source tree importable."""
    variables = {**os.environ, "PYTHONPATH": str(REPO), "OMP_NUM_THREADS": "1"}
    return run([str(python), *arguments], env=variables)


@pytest.mark.parametrize(
    ("optimizer", "learning_rate", "tolerance"),
    [
        pytest.param(Optimizer(), 0.1, 1e-6, id="sgd"),
        pytest.param(Optimizer(clip_norm=0.5), 0.1, 1e-6, id="sgd with clipping"),
        # Adam divides by the gradient's size, so rounding in tiny gradients shows at the scale of the rate.
        pytest.param(Optimizer("adamw", weight_decay=0.01), 0.002, 2e-4, id="adamw"),
        pytest.param(Optimizer("adam"), 0.002, 2e-4, id="adam"),
    ],
)
def test_same_task_same_update(
    optimizer: Optimizer,
    learning_rate: float,
    tolerance: float,
    python: Path,
    share: dict[str, NDArray[Any]],
    tmp_path: Path,
) -> None:
    structure = Structure(LENET, optimizer=optimizer)
    module = zoo.create(LENET, seed=1)
    recipe = Recipe(batch=16, learning_rate=learning_rate, seed=3, steps=STEPS)
    folders = {}
    for backend, made in (
        ("portable", build(structure, module)),
        ("classic", build_classic(structure, python=python, module=module)),
    ):
        folders[backend] = tmp_path / backend
        folders[backend].mkdir()
        one_task.write_task(folders[backend], made, initial_weights(module), recipe=recipe, **share)

    there = json.loads(
        in_environment(python, one_task.__file__, str(folders["classic"]), "classic", str(tmp_path / "there"))
    )
    here = one_task.do_task(folders["portable"], "portable", tmp_path / "here")

    update_here, update_there = tensors.load(tmp_path / "here"), tensors.load(tmp_path / "there")
    assert len(there["losses"]) == STEPS
    assert there["losses"] == pytest.approx(here["losses"], abs=1e-4)
    assert there["correct"] == here["correct"]
    assert update_there.keys() == update_here.keys()
    for name, value in update_there.items():
        assert np.abs(update_here[name]).max() > 10 * tolerance, name
        np.testing.assert_allclose(value, update_here[name], rtol=0, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("model", ["lenet", "resnet8", "vit-tiny"])
def test_portable_artifacts_run_on_the_oldest_runtime(
    model: str, python: Path, share: dict[str, NDArray[Any]], tmp_path: Path
) -> None:
    spec = ModelSpec(model, (1, 8, 8), 10)
    module = zoo.create(spec, seed=1)
    built = build(Structure(spec, optimizer=Optimizer(momentum=0.9)), module)
    recipe = Recipe(batch=16, learning_rate=0.02, seed=3, steps=5)
    one_task.write_task(tmp_path, built, initial_weights(module), recipe=recipe, **share)

    there = json.loads(in_environment(python, one_task.__file__, str(tmp_path), "portable", str(tmp_path / "there")))
    here = one_task.do_task(tmp_path, "portable", tmp_path / "here")

    assert there["losses"] == pytest.approx(here["losses"], abs=1e-4)
    assert there["correct"] == here["correct"]


def test_terms_of_the_objective_and_side_inputs(python: Path, share: dict[str, NDArray[Any]], tmp_path: Path) -> None:
    structure = Structure(LENET, objective=Objective(proximal=0.1, masked_classes=True))
    module = zoo.create(LENET, seed=1)
    weights = initial_weights(module)
    sides = {f"centre/{name}": value * 0.9 for name, value in weights.items()}
    sides["class_mask"] = np.array([1, 1, 1, 1, 1, 1, 1, 1, 0, 0], np.float32)
    built = {
        "portable": build(structure, module),
        "classic": build_classic(structure, python=python, module=module),
    }
    batch = {"x": share["x"][:16], "y": share["y"][:16] % 8}
    trainer_contract.write_folder(tmp_path, built, weights=weights, batch=batch, sides=sides)

    there = json.loads(in_environment(python, trainer_contract.__file__, "losses", str(tmp_path), "classic"))
    here = trainer_contract.losses(tmp_path, "portable")

    assert there == pytest.approx(here, abs=1e-5)
    assert there[-1] < there[0]


def test_trainer_contract(python: Path, share: dict[str, NDArray[Any]], tmp_path: Path) -> None:
    adamw = Structure(LENET, optimizer=Optimizer("adamw"))
    weights = initial_weights(zoo.create(LENET, seed=1))
    built = {"classic": build_classic(adamw, python=python)}
    batch = {name: value[:16] for name, value in share.items()}
    trainer_contract.write_folder(tmp_path, built, weights=weights, batch=batch)

    said = in_environment(python, trainer_contract.__file__, "contract", str(tmp_path), "classic")

    assert json.loads(said) == [check.__name__ for check in trainer_contract.CHECKS]


def test_the_environment_has_no_torch_and_no_stock_runtime(python: Path) -> None:
    program = "import importlib.util as u, onnxruntime; print(u.find_spec('torch'), onnxruntime.__version__)"

    assert in_environment(python, "-c", program) == "None 1.19.2\n"


def test_a_stock_runtime_says_what_to_install(artifact: Artifact) -> None:
    with pytest.raises(DeviceError, match=r'pip install "fedwright\[classic\]"'):
        ClassicTrainer(artifact)


@pytest.mark.parametrize(
    ("structure", "problem"),
    [
        pytest.param(Structure(LENET, optimizer=Optimizer(momentum=0.9)), "momentum", id="momentum"),
        pytest.param(Structure(LENET, optimizer=Optimizer(weight_decay=0.1)), "weight decay", id="decay"),
        pytest.param(Structure(ModelSpec("resnet8", (3, 32, 32), 10)), "running statistics", id="batch norm"),
        pytest.param(Structure(LENET, objective=Objective(element_masks=True)), "masks", id="masks"),
    ],
)
def test_what_classic_lacks_is_refused(structure: Structure, problem: str) -> None:
    with pytest.raises(BuildError, match=f"uses {problem}.*use portable"):
        build_classic(structure, python=Path("unused"))


def test_an_environment_without_the_generator(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="environment with fedwright"):
        build_classic(Structure(LENET), python=tmp_path / "python")


def test_equal_structures_give_equal_bytes(python: Path, artifact: Artifact) -> None:
    assert build_classic(Structure(LENET), python=python, module=zoo.create(LENET, seed=9)) == artifact


def with_train(artifact: Artifact, train: bytes) -> Artifact:
    """The artifact with other training bytes and a manifest that vouches for them."""
    hashes = {**artifact.manifest.files, "train.onnx": file_info(train)}
    return Artifact(structs.replace(artifact.manifest, files=hashes), train, artifact.eval)


def with_files(artifact: Artifact, change: Callable[[ClassicFiles], dict[str, bytes]]) -> Artifact:
    """The artifact with some of its three files changed."""
    files = unpack_files(artifact.train)
    return with_train(artifact, pack_files(structs.replace(files, **change(files))))


BAD = {
    "does not have the hash": lambda a: Artifact(a.manifest, a.train + b"x", a.eval),
    "cannot be decoded": lambda a: with_train(a, b"junk"),
    "is not an ONNX file": lambda a: with_files(a, lambda f: {"training": f.training[:-5]}),
    "operator 'PythonOp'": lambda a: with_files(
        a, lambda f: {"training": f.training.replace(b"ReluGrad", b"PythonOp")}
    ),
    "read no file": lambda a: with_files(a, lambda f: {"optimizer": f.optimizer + b"location"}),
    "at most 4096 bytes": lambda a: with_files(a, lambda f: {"optimizer": bytes(5000)}),
    "not for the classic backend": lambda a: Artifact(structs.replace(a.manifest, backend="portable"), a.train, a.eval),
}


@pytest.mark.parametrize(("message", "make"), BAD.items(), ids=BAD)
def test_a_bad_artifact_is_refused(message: str, make: Callable[..., Any], artifact: Artifact) -> None:
    with pytest.raises(BadArtifact, match=message):
        check_classic(make(artifact), batch=16, free_bytes=10**9)


def test_a_good_artifact_passes_the_check(artifact: Artifact) -> None:
    check_classic(artifact, batch=16, free_bytes=10**9)


def test_a_step_that_does_not_fit_is_refused(artifact: Artifact) -> None:
    with pytest.raises(OverBudget):
        check_classic(artifact, batch=16, free_bytes=10**6)
