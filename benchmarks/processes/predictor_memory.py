"""One measurement of `fedwright bench predictor`: the peak memory of training an artifact, above the base.

Run as `python -m fedwright.benchmarks.processes.predictor_memory ARTIFACT BATCH LIMIT`; prints the bytes as JSON,
or null when training did not fit into LIMIT bytes beyond what the process had before, which the system enforces
(0: no limit).
"""

import json
import resource
import sys
from pathlib import Path

from fedwright.device_runtime import facts
from fedwright.device_runtime.profiler.measure import make_batch, start
from fedwright.device_runtime.train.portable import PortableTrainer
from fedwright.protocol.artifact import unpack
from fedwright.protocol.errors import OverBudget

STEPS = 4


def peak_bytes(path: Path, batch: int, limit_bytes: int) -> int | None:
    """Highest resident memory while training, less what the process had before; None when it was not enough."""
    artifact = unpack(path.read_bytes())
    before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    if limit_bytes:
        limit_bytes += _data_bytes()
        resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))
    try:
        trainer = PortableTrainer(artifact)
        start(trainer)
        data = make_batch(trainer, batch)
        for _ in range(STEPS):
            trainer.step(data, learning_rate=0.01, seed=0)
    except (OverBudget, MemoryError):
        return None
    return facts.peak_rss_bytes() - before


def _data_bytes() -> int:
    """What RLIMIT_DATA counts of this process now."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData:"))


if __name__ == "__main__":
    sys.stdout.write(json.dumps(peak_bytes(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))) + "\n")
