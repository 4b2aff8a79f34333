"""One measurement of `fedwright bench predictor`: the peak memory of training an artifact, above the base.

Run as `python -m fedwright.benchmarks.predictor_child ARTIFACT BATCH`; prints the bytes as JSON.
"""

import json
import resource
import sys
from pathlib import Path

from fedwright.device_runtime import facts
from fedwright.device_runtime.profiler.measure import make_batch, start
from fedwright.device_runtime.train.portable import PortableTrainer
from fedwright.protocol.artifact import unpack

STEPS = 4


def peak_bytes(path: Path, batch: int) -> int:
    """Highest resident memory while training, less what the process had before."""
    artifact = unpack(path.read_bytes())
    before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    trainer = PortableTrainer(artifact)
    start(trainer)
    data = make_batch(trainer, batch)
    for _ in range(STEPS):
        trainer.step(data, learning_rate=0.01, seed=0)
    return facts.peak_rss_bytes() - before


if __name__ == "__main__":
    sys.stdout.write(json.dumps(peak_bytes(Path(sys.argv[1]), int(sys.argv[2]))) + "\n")
