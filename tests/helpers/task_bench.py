"""Tasks with their files on disk, for whoever runs them, and a way to see that one runs."""

import os
import time
from typing import Any

import numpy as np

from fedwright.device_runtime.emulate.meter import process_cpu_s
from fedwright.device_runtime.equipment_settings import EquipmentSettings
from fedwright.device_runtime.task_inputs import Inputs
from fedwright.protocol import artifact as artifacts
from fedwright.protocol import tensors
from fedwright.protocol.blobs import make_ref
from fedwright.protocol.messages import Recipe, Returns, Task
from helpers.fleet import make_data
from helpers.present import present
from helpers.tiny_artifact import make_artifact, start_weights


class Bench:
    """Tasks with their files, and a runner in a folder of its own."""

    def __init__(self, folder: Any) -> None:
        self.folder = folder
        (folder / "weights").write_bytes(tensors.save(start_weights()))
        data = make_data("a")
        np.savez(folder / "data.npz", x=data.x, y=data.y)

    def settings(self, name: Any = "device", **changes: Any) -> Any:
        own = self.folder / name
        own.mkdir(exist_ok=True)
        fields = {"data": f"npz:{self.folder / 'data.npz'}", "folder": str(own), "state": str(self.folder)}
        return EquipmentSettings(**{**fields, "holdout_ratio": 0.25, "threads": 1, **changes})

    def task(self, artifact: Any = None, *, name: Any = "t1", **returns: Any) -> Any:
        """A task and its inputs."""
        blob = artifacts.pack(artifact or make_artifact())
        file = self.folder / make_ref(blob).sha256
        file.write_bytes(blob)
        recipe = Recipe(batch=8, learning_rate=0.1, seed=3, epochs=2)
        refs = make_ref(blob, inline=False), make_ref(self.folder / "weights", inline=False)
        return Task(name, "boot", "run", 1, *refs, recipe, Returns(**returns), 60.0), Inputs(
            file, self.folder / "weights"
        )


def wait_for_work(pid: Any) -> None:
    """Wait until a process has been busy for a while."""
    begin_s, until_s = present(process_cpu_s(pid)), time.monotonic() + 20
    while present(process_cpu_s(pid)) - begin_s < 0.3:
        assert time.monotonic() < until_s, "it does nothing"
        os.sched_yield()
