"""The memory that a task is predicted to need, against what a process that does it really takes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fedwright.device_runtime.train.check import need_bytes
from fedwright.protocol.artifact import pack
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.builder import build
from fedwright.server_runtime.spec import ModelSpec, Optimizer, Structure

# Never much more than predicted, or a device dies; never far less, or it refuses what it could do.
MOST, LEAST = 1.1, 0.4

PROGRAM = """
import json, resource, sys
from pathlib import Path
import numpy as np
from fedwright.device_runtime import facts
from fedwright.device_runtime.data.local import LocalData
from fedwright.device_runtime.train import loop
from fedwright.device_runtime.train.portable import PortableTrainer
from fedwright.protocol.artifact import unpack
from fedwright.protocol.messages import Recipe

artifact, batch = unpack(Path(sys.argv[1]).read_bytes()), int(sys.argv[2])
shape, rng = artifact.manifest.batch[0].shape[1:], np.random.default_rng(0)
weights = {
    slot.name: (rng.normal(size=slot.shape) * 0.05).astype(np.float32)
    for slot in artifact.manifest.slots
    if slot.role != "optimizer"
}
x, y = rng.normal(size=(2 * batch, *shape)).astype(np.float32), np.zeros(2 * batch, np.int64)
data = LocalData(x, y, x, y, artifact.manifest.classes, (2 * batch,), tuple(shape))
before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
trainer = PortableTrainer(artifact)
trainer.load(weights)
loop.evaluate(trainer, data)
loop.train(trainer, data, Recipe(batch=batch, learning_rate=0.01, seed=0))
loop.evaluate(trainer, data)
print(json.dumps(facts.peak_rss_bytes() - before))
"""


@pytest.mark.parametrize(
    ("spec", "batch"),
    [
        pytest.param(ModelSpec("lenet", (1, 28, 28), 10), 32, id="lenet"),
        pytest.param(ModelSpec("resnet8", (3, 32, 32), 10), 8, id="resnet8, small batch"),
        pytest.param(ModelSpec("resnet8", (3, 32, 32), 10), 32, id="resnet8"),
    ],
)
def test_prediction_is_neither_short_nor_wasteful(tmp_path: Path, spec: ModelSpec, batch: int) -> None:
    artifact = build(Structure(spec, optimizer=Optimizer(momentum=0.9)), zoo.create(spec, seed=0))
    (tmp_path / "artifact").write_bytes(pack(artifact))
    words = [sys.executable, "-c", PROGRAM, str(tmp_path / "artifact"), str(batch)]

    done = subprocess.run(words, capture_output=True, text=True, check=True)

    need = need_bytes(artifact.manifest, batch)
    assert LEAST * need < json.loads(done.stdout) < MOST * need
