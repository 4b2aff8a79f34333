"""What every Trainer must keep to, as plain functions; also a program, for backends that need their own environment.

`python trainer_contract.py contract|losses FOLDER BACKEND`: FOLDER holds `BACKEND.artifact`, `weights`, `batch.npz`
and `sides`.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwright.device_runtime.start import make_tools
from fedwright.device_runtime.train.base import Trainer
from fedwright.protocol import artifact as artifacts
from fedwright.protocol import tensors
from fedwright.protocol.artifact import Artifact
from fedwright.protocol.errors import BadBlob

RATE = 0.01


def write_folder(
    folder: Path,
    built: dict[str, Artifact],
    *,
    weights: dict[str, NDArray[Any]],
    batch: dict[str, Any],
    sides: dict[str, NDArray[Any]] | None = None,
) -> None:
    """Lay out FOLDER; `built` has an artifact per backend."""
    for backend, artifact in built.items():
        (folder / f"{backend}.artifact").write_bytes(artifacts.pack(artifact))
    (folder / "weights").write_bytes(tensors.save(weights))
    (folder / "sides").write_bytes(tensors.save(sides or {}))
    np.savez(folder / "batch.npz", **batch)


def make_trainer(folder: Path, backend: str) -> Trainer:
    """The trainer an agent would make of the folder's artifact."""
    tools = make_tools(backend, threads=1, folder=folder)
    artifact = artifacts.unpack((folder / f"{backend}.artifact").read_bytes())
    return tools.make_trainer(artifact, tensors.load(folder / "sides"), {})


class Subject:
    """A trainer under test with its weights and a batch."""

    def __init__(self, folder: Path, backend: str, trainer: Trainer | None = None) -> None:
        self.trainer = make_trainer(folder, backend) if trainer is None else trainer
        self.weights = tensors.load(folder / "weights")
        self.batch = dict(np.load(folder / "batch.npz"))

    def steps(self, count: int) -> list[float]:
        """The losses of some steps."""
        return [self.trainer.step(self.batch, learning_rate=RATE, seed=n).loss for n in range(count)]

    def inputs(self) -> dict[str, NDArray[Any]]:
        """The batch without its labels."""
        return {name: value for name, value in self.batch.items() if name != "y"}


def same(first: dict[str, NDArray[Any]], second: dict[str, NDArray[Any]]) -> bool:
    """Whether two sets of tensors are equal to the bit."""
    return first.keys() == second.keys() and all(np.array_equal(first[name], second[name]) for name in first)


def load_starts_afresh(subject: Subject) -> None:
    """The same weights give the same steps, whatever was trained before: optimizer state is reset."""
    subject.trainer.load(subject.weights)
    first = subject.steps(3)
    subject.trainer.load(subject.weights)
    assert subject.steps(3) == first
    assert first[2] < first[0]


def load_takes_exactly_the_named_slots(subject: Subject) -> None:
    """A missing, an unknown or a misshapen tensor is refused."""
    name = min(subject.weights)
    missing = {key: value for key, value in subject.weights.items() if key != name}
    for bad in (missing, {**subject.weights, "other": np.zeros(1, np.float32)}, {**missing, name: np.zeros(77)}):
        try:
            subject.trainer.load(bad)
        except BadBlob:
            continue
        raise AssertionError(f"loaded {sorted(bad)}")


def step_leaves_the_callers_arrays_alone(subject: Subject) -> None:
    """Neither the batch nor the loaded weights change."""
    batch = {name: value.copy() for name, value in subject.batch.items()}
    weights = {name: value.copy() for name, value in subject.weights.items()}
    subject.trainer.load(subject.weights)
    subject.steps(2)
    assert same(batch, subject.batch)
    assert same(weights, subject.weights)


def weights_are_copies_under_the_loaded_names(subject: Subject) -> None:
    """What was handed out does not change with later steps."""
    subject.trainer.load(subject.weights)
    assert same(subject.trainer.weights(), subject.weights)
    subject.steps(1)
    held = subject.trainer.weights()
    kept = {name: value.copy() for name, value in held.items()}
    subject.steps(1)
    assert same(held, kept)
    assert not same(held, subject.trainer.weights())


def any_batch_size_will_do(subject: Subject) -> None:
    """One sample is a batch; so is every other number."""
    subject.trainer.load(subject.weights)
    for size in (1, 7, 3):
        part = {name: value[:size] for name, value in subject.batch.items()}
        result = subject.trainer.step(part, learning_rate=RATE, seed=0)
        logits, embedding = subject.trainer.predict({name: part[name] for name in subject.inputs()})
        assert np.isfinite(result.loss)
        assert 0 <= result.correct <= size
        assert len(logits) == len(embedding) == size


def snapshot_round_trips_to_the_bit(subject: Subject) -> None:
    """Training goes on from a snapshot as if it had never stopped, also after other weights were loaded."""
    subject.trainer.load(subject.weights)
    subject.steps(2)
    snapshot = subject.trainer.snapshot()
    losses, after = subject.steps(3), subject.trainer.weights()
    subject.trainer.load({name: value * 0 for name, value in subject.weights.items()})
    subject.steps(1)
    subject.trainer.restore(snapshot)
    assert subject.steps(3) == losses
    assert same(subject.trainer.weights(), after)


def predict_uses_the_present_weights(subject: Subject) -> None:
    """Evaluation follows training and changes nothing."""
    subject.trainer.load(subject.weights)
    before, _ = subject.trainer.predict(subject.inputs())
    subject.steps(2)
    weights = subject.trainer.weights()
    after, _ = subject.trainer.predict(subject.inputs())
    assert not np.array_equal(before, after)
    assert same(weights, subject.trainer.weights())


CHECKS = [
    load_starts_afresh,
    load_takes_exactly_the_named_slots,
    step_leaves_the_callers_arrays_alone,
    weights_are_copies_under_the_loaded_names,
    any_batch_size_will_do,
    snapshot_round_trips_to_the_bit,
    predict_uses_the_present_weights,
]


def losses(folder: Path, backend: str) -> list[float]:
    """The losses of ten steps from the folder's weights."""
    subject = Subject(folder, backend)
    subject.trainer.load(subject.weights)
    return subject.steps(10)


def contract(folder: Path, backend: str) -> list[str]:
    """Names of the checks that were kept; the first that is not raises."""
    for check in CHECKS:
        check(Subject(folder, backend))
    return [check.__name__ for check in CHECKS]


if __name__ == "__main__":
    json.dump({"contract": contract, "losses": losses}[sys.argv[1]](Path(sys.argv[2]), sys.argv[3]), sys.stdout)
