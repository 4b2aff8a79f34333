"""One task done by the agent's own code, as a program: `python one_task.py FOLDER BACKEND RESULT`.

Runs on whatever machine and environment has the device side: FOLDER holds `artifact`, `weights`, `data.npz` and
`recipe.json`; RESULT gets the update's tensors, standard output the losses of every step as JSON.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedwright.device_runtime.data import load
from fedwright.device_runtime.equipment import make_tools
from fedwright.device_runtime.run_task import run_task
from fedwright.device_runtime.task_inputs import Inputs
from fedwright.device_runtime.train.base import StepResult, Trainer
from fedwright.protocol import artifact as artifacts
from fedwright.protocol import tensors
from fedwright.protocol.artifact import Artifact
from fedwright.protocol.blobs import make_ref
from fedwright.protocol.messages import Recipe, Returns, Task

HOLDOUT_RATIO = 0.25


def write_task(
    folder: Path,
    artifact: Artifact,
    weights: dict[str, NDArray[Any]],
    *,
    recipe: Recipe,
    x: NDArray[Any],
    y: NDArray[Any],
) -> None:
    """Lay out FOLDER."""
    (folder / "artifact").write_bytes(artifacts.pack(artifact))
    (folder / "weights").write_bytes(tensors.save(weights))
    np.savez(folder / "data.npz", x=x, y=y)
    (folder / "recipe.json").write_bytes(msgspec.json.encode(recipe))


def do_task(folder: Path, backend: str, result: Path) -> dict[str, int | list[float]]:
    """Check, train, evaluate; returns the losses and what was classified right."""
    inputs = Inputs(artifact=folder / "artifact", weights=folder / "weights")
    task = Task(
        task="task",
        boot="boot",
        run="run",
        round=1,
        artifact=make_ref(inputs.artifact, inline=False),
        weights=make_ref(inputs.weights, inline=False),
        recipe=msgspec.json.decode((folder / "recipe.json").read_bytes(), type=Recipe),
        returns=Returns(weights="delta"),
        deadline_s=600,
    )
    tools = make_tools(backend, threads=1, folder=result.parent)
    losses: list[float] = []

    def make_trainer(*arguments: Any) -> Trainer:
        trainer = tools.make_trainer(*arguments)
        step = trainer.step

        def recorded(*batch: Any, **options: Any) -> StepResult:
            done = step(*batch, **options)
            losses.append(done.loss)
            return done

        mock.patch.object(trainer, "step", recorded).start()
        return trainer

    data = load(f"npz:{folder / 'data.npz'}", holdout_ratio=HOLDOUT_RATIO, seed=0)
    recording = replace(tools, make_trainer=make_trainer)
    done = run_task(task, inputs, data, tools=recording, should_stop=lambda: False)
    result.write_bytes(tensors.save(done.tensors))
    stats = done.stats
    # Told without help of the other tests: this file runs by itself where they are not.
    assert stats.correct_before is not None
    assert stats.correct_after is not None
    correct: list[float] = [stats.correct_before, stats.correct_after]
    return {"losses": losses, "correct": correct, "holdout": stats.holdout}


if __name__ == "__main__":
    json.dump(do_task(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])), sys.stdout)
