"""One measurement of `fedwright bench large`: what a device's process takes that trains a part of a large model.

Run as `python -m fedwright.benchmarks.processes.large_device FOLDER BATCH`; the folder holds artifact, frozen base and
weights as a device keeps them. Prints the highest resident memory of the whole process and CPU seconds per step.
"""

import json
import sys
import time
from pathlib import Path

from fedwright.device_runtime import facts
from fedwright.device_runtime.profiler.measure import make_batch
from fedwright.device_runtime.train.portable import PortableTrainer
from fedwright.protocol import tensors
from fedwright.protocol.artifact import unpack

ARTIFACT, FROZEN, WEIGHTS = "artifact", "frozen", "weights"
STEPS = 3


def measured(folder: Path, batch: int) -> dict[str, float]:
    """Train some steps and measure on some samples, as a task does; every figure of this process."""
    artifact = unpack((folder / ARTIFACT).read_bytes())
    trainer = PortableTrainer(artifact, frozen=dict(tensors.map_file(folder / FROZEN)))
    trainer.load(dict(tensors.load(folder / WEIGHTS)))
    data = make_batch(trainer, batch)
    trainer.step(data, learning_rate=0.01, seed=0)
    before = time.process_time()
    losses = [trainer.step(data, learning_rate=0.01, seed=0).loss for _ in range(STEPS)]
    seconds = (time.process_time() - before) / STEPS
    trainer.predict(data)
    return {"peak_bytes": facts.peak_rss_bytes(), "step_cpu_s": seconds, "loss": losses[-1]}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measured(Path(sys.argv[1]), int(sys.argv[2]))) + "\n")
