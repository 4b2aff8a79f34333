"""Building an artifact stays cheap."""

import time

import pytest
import torch

from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.builder import build
from fedwright.server_runtime.spec import ModelSpec, Optimizer, Structure

LENET = ModelSpec("lenet", (1, 28, 28), 10)


@pytest.mark.parametrize(
    ("spec", "limit_s"), [(LENET, 0.5), (ModelSpec("resnet18", (3, 32, 32), 10), 3.0)], ids=["lenet", "resnet18"]
)
def test_cpu_time_of_a_build(spec: ModelSpec, limit_s: float) -> None:
    build(Structure(LENET), zoo.create(LENET, seed=0))
    module = zoo.create(spec, seed=0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)

    start = time.process_time()
    artifact = build(Structure(spec, optimizer=Optimizer(momentum=0.9)), module)
    spent = time.process_time() - start

    torch.set_num_threads(threads)
    assert spent < limit_s
    assert len(artifact.train) < 400_000
