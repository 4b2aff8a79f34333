"""What writing models costs a server: a thousand adapters, and a ResNet-18 in pieces."""

import subprocess
import sys

from fedwright.benchmarks.suites import hypernet as bench


def test_a_thousand_adapters_are_written_within_a_second():
    assert bench.adapters_cost(1000, 1).cpu_s < 1.0


def test_a_resnet_18_is_written_and_learnt_within_2_gb():
    done = subprocess.run([sys.executable, "-c", bench.CHILD], capture_output=True, text=True, check=True)
    assert int(done.stdout) < bench.LIMIT_BYTES
