"""What writing models costs a server: a thousand adapters, and a ResNet-18 in pieces."""

import subprocess
import sys

import numpy as np

from fedwright.benchmarks.suites import hypernet as bench
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.export import initial_weights
from helpers.cost import least_cpu_s

DEVICES, HIDDEN = 1000, 128


def test_a_thousand_adapters_cost_little_beside_the_bare_product() -> None:
    weights = initial_weights(zoo.create(bench.ADAPTED, seed=0))
    entries = sum(weights[name].size for name in zoo.adapter_names(zoo.create(bench.ADAPTED, seed=0)))
    rng = np.random.default_rng(0)
    rows, head = rng.random((DEVICES, HIDDEN), np.float32), rng.random((HIDDEN, entries), np.float32)

    (product_s,) = least_cpu_s(lambda: rows @ head)

    # About eight times; written one by one it would be 35 times.
    assert min(bench.adapters_cost(DEVICES, 5).cpu_s for _ in range(8)) < 20 * product_s


def test_a_resnet_18_is_written_and_learnt_within_2_gb() -> None:
    done = subprocess.run([sys.executable, "-c", bench.CHILD], capture_output=True, text=True, check=True)
    assert int(done.stdout) < bench.LIMIT_BYTES
