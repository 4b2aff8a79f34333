"""Layers that never leave a device: kept from task to task, of one run, and only when the server used the update."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs
from numpy.typing import NDArray

from fedwright.device_runtime.run_task import Result, Tools, run_task
from fedwright.device_runtime.store.checkpoint import Checkpoint
from fedwright.device_runtime.store.personal_layers import PersonalLayers
from fedwright.device_runtime.task_inputs import Inputs
from fedwright.device_runtime.train.portable import PortableTrainer
from fedwright.protocol import artifact as artifacts
from fedwright.protocol import tensors
from fedwright.protocol.blobs import make_ref
from fedwright.protocol.errors import BadBlob
from fedwright.protocol.messages import Recipe, Returns, Task
from helpers.fleet import make_data
from helpers.tiny_artifact import make_artifact, start_weights

OWN = sorted(start_weights())[-1]
OTHERS = {name for name in start_weights() if name != OWN}
DATA = make_data("device")


class Device:
    """Does tasks one after another."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        artifact = artifacts.pack(make_artifact())
        (folder / "artifact").write_bytes(artifact)
        self.artifact = make_ref(artifact)
        self.layers = PersonalLayers(folder)
        self.tools = Tools(
            lambda a, s, f: PortableTrainer(a, sides=s, frozen=f),
            lambda artifact, recipe: None,
            Checkpoint(folder / "checkpoint", every_s=60),
            self.layers,
        )

    def task(self, number: int = 1, *, run: str = "run", personal: tuple[str, ...] = (OWN,), **changes: Any) -> Task:
        weights = tensors.save(start_weights())
        (self.folder / "weights").write_bytes(weights)
        returns = Returns(personal=list(personal), **changes)
        recipe = Recipe(batch=4, learning_rate=0.5, seed=number)
        return Task(f"task-{number}", "boot", run, number, self.artifact, make_ref(weights), recipe, returns, 60.0)

    def do(self, task: Task) -> Result:
        """What a task sends back."""
        inputs = Inputs(self.folder / "artifact", self.folder / "weights")
        return run_task(task, inputs, DATA, tools=self.tools, should_stop=lambda: False)

    def kept(self, run: str = "run") -> NDArray[Any]:
        """The layer that the next task starts from."""
        return self.layers.over(start_weights(), [OWN], run=run)[OWN]


@pytest.fixture
def device(tmp_path: Path) -> Device:
    return Device(tmp_path)


def test_a_personal_layer_is_not_sent_and_goes_on_from_task_to_task(device: Device) -> None:
    whole = device.do(device.task(personal=())).tensors
    result = device.do(device.task())
    assert result.tensors.keys() == OTHERS
    assert all(np.array_equal(result.tensors[name], whole[name]) for name in OTHERS)

    device.layers.settle("task-1", used=True)
    np.testing.assert_array_equal(device.kept(), start_weights()[OWN] + whole[OWN])
    again = device.do(device.task())
    assert not all(np.array_equal(again.tensors[name], whole[name]) for name in OTHERS)


def test_measuring_sees_the_personal_layer_and_does_not_change_it(device: Device) -> None:
    kept = np.array([0.0, 0.0, 100.0, 0.0], np.float32)
    device.layers.keep(device.task(), {OWN: kept})
    device.layers.settle("task-1", used=True)

    measure = structs.replace(device.task(2, weights="none"), recipe=Recipe(4, 0.0, 0, epochs=0))
    with_layer = device.do(measure)
    without = device.do(structs.replace(measure, returns=Returns("none")))
    device.layers.settle("task-2", used=True)

    assert with_layer.tensors == {}
    assert with_layer.stats.correct_before == (DATA.y_holdout == 2).sum()
    assert without.stats.correct_before != with_layer.stats.correct_before
    np.testing.assert_array_equal(device.kept(), kept)


@pytest.mark.parametrize("answered", [("task-1", False), ("another", True)], ids=["not used", "another task"])
def test_what_the_server_did_not_use_was_never_learned(device: Device, answered: tuple[str, bool]) -> None:
    device.do(device.task())
    device.layers.settle(answered[0], used=answered[1])

    np.testing.assert_array_equal(device.kept(), start_weights()[OWN])
    device.layers.settle("task-1", used=True)
    np.testing.assert_array_equal(device.kept(), start_weights()[OWN])


def test_another_run_starts_without(device: Device) -> None:
    device.do(device.task())
    device.layers.settle("task-1", used=True)

    assert not np.array_equal(device.kept(), start_weights()[OWN])
    np.testing.assert_array_equal(device.kept(run="other"), start_weights()[OWN])


def test_another_run_of_the_same_name_starts_without(device: Device) -> None:
    first, second = (structs.replace(device.task(), run_identity=name) for name in ("aa", "bb"))
    device.do(first)
    device.layers.settle("task-1", used=True)

    assert not np.array_equal(device.kept(run=first.run_key), start_weights()[OWN])
    np.testing.assert_array_equal(device.kept(run=second.run_key), start_weights()[OWN])
    # Nor does a task of a server that gives its runs no identity.
    np.testing.assert_array_equal(device.kept(run=device.task().run_key), start_weights()[OWN])


def test_a_layer_of_another_shape_starts_anew(device: Device) -> None:
    layers, task = device.layers, device.task()
    layers.keep(task, {"head": np.ones((2, 3), np.float32)})
    layers.settle(task.task, used=True)

    wide = layers.over({"head": np.zeros((2, 4), np.float32)}, ["head"], run="run")
    same = layers.over({"head": np.zeros((2, 3), np.float32)}, ["head"], run="run")
    assert (wide["head"].max(), same["head"].min()) == (0, 1)


def test_a_damaged_file_is_nothing(device: Device) -> None:
    device.do(device.task())
    device.layers.settle("task-1", used=True)
    (device.folder / "personal").write_bytes(b"garbage")

    np.testing.assert_array_equal(device.kept(), start_weights()[OWN])


def test_a_layer_that_the_model_has_not(device: Device) -> None:
    with pytest.raises(BadBlob, match="makes tail a personal layer but the model has none of that name"):
        device.do(device.task(personal=("tail",)))
