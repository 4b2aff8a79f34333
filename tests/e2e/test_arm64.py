"""The agent's training code on ARM64: same losses as on x86-64, as the CPUs of a Raspberry Pi 4 and 5."""

import json
import signal
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from fedwright.protocol import tensors
from fedwright.protocol.messages import Recipe
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.builder import Builder, initial_weights
from fedwright.server_runtime.spec import ModelSpec, Optimizer, Structure
from helpers import one_task
from helpers.arm64_root import Arm64Root, arm64_root

pytestmark = [pytest.mark.arm64, pytest.mark.slow, pytest.mark.timeout(900)]

PI_4, PI_5 = "cortex-a72", "cortex-a76"
# Held out are a quarter of the samples; the rest is one batch, the same in every step.
STEPS, SAMPLES, BATCH = 5, 32, 24


@pytest.fixture(scope="module")
def root(wheel: Path) -> Arm64Root:
    return arm64_root(wheel)


@pytest.fixture(scope="module")
def package(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's content, as a folder that Python can import from."""
    folder = tmp_path_factory.mktemp("package")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a few steps of a small CNN on real digits."""
    folder = tmp_path_factory.mktemp("task")
    spec = ModelSpec("cnn-small", (1, 8, 8), 10)
    digits = load_digits(n_class=10)
    one_task.write_task(
        folder,
        Builder(folder / "cache").build(Structure(spec, optimizer=Optimizer(momentum=0.9))),
        initial_weights(zoo.create(spec, seed=1)),
        recipe=Recipe(batch=BATCH, learning_rate=0.1, seed=3, steps=STEPS),
        x=(digits.images[:SAMPLES, None] / 16).astype(np.float32),
        y=digits.target[:SAMPLES].astype(np.int64),
    )
    return folder


@pytest.fixture(scope="module")
def native(
    task: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, int | list[float]], dict[str, NDArray[Any]]]:
    """What the task comes to on this machine."""
    result = tmp_path_factory.mktemp("native") / "update"
    return one_task.do_task(task, "portable", result), tensors.load(result)


@pytest.mark.parametrize("cpu", [PI_4, PI_5])
def test_training_on_arm64_equals_x86(
    cpu: str,
    root: Arm64Root,
    package: Path,
    task: Path,
    native: tuple[dict[str, int | list[float]], dict[str, NDArray[Any]]],
    tmp_path: Path,
) -> None:
    result = tmp_path / "update"

    done = root.run_python(
        cpu, [one_task.__file__, str(task), "portable", str(result)], path=[package, root.site], timeout_s=240
    )

    assert done.returncode == 0, done.stderr
    here, update_here = native
    there, update_there = json.loads(done.stdout), tensors.load(result)
    assert len(there["losses"]) == STEPS
    assert there["losses"] == pytest.approx(here["losses"], abs=1e-4)
    assert there["losses"][-1] < there["losses"][0]
    assert there["correct"] == here["correct"]
    assert update_there.keys() == update_here.keys()
    for name, value in update_there.items():
        np.testing.assert_allclose(value, update_here[name], atol=1e-4, err_msg=name)


def test_control_a_runtime_with_newer_instructions_dies_on_a_raspberry_pi_4(root: Arm64Root) -> None:
    program = ["-c", "import onnxruntime; print(onnxruntime.__version__)"]

    on_pi_4 = root.run_python(PI_4, program, path=[root.bad_site, root.site])
    on_pi_5 = root.run_python(PI_5, program, path=[root.bad_site, root.site])

    assert on_pi_4.returncode == -signal.SIGILL
    assert (on_pi_5.returncode, on_pi_5.stdout) == (0, "1.21.0\n")


def test_the_root_is_arm64_and_has_no_server_packages(root: Arm64Root) -> None:
    program = (
        "import importlib.util, json, platform, sys; "
        "print(json.dumps([platform.machine(), [n for n in sys.argv[1:] if importlib.util.find_spec(n)]]))"
    )

    done = root.run_python(PI_4, ["-c", program, "torch", "onnx", "sklearn", "rich"], path=[root.site])

    assert json.loads(done.stdout) == ["aarch64", []]
