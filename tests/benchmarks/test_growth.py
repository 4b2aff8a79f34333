"""Growth is the slope of a line on a log plot; one real simulation says what its server used."""

import json
import subprocess
import sys

import pytest

from fedwright.benchmarks.suites.growth import exponent


def test_exponents_of_known_costs() -> None:
    sizes = [10, 30, 100, 300]

    assert exponent(sizes, [3.0 * size for size in sizes]) == pytest.approx(1.0)
    assert exponent(sizes, [0.5 * size**2 for size in sizes]) == pytest.approx(2.0)
    assert exponent(sizes, [7.0] * 4) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.slow
def test_a_simulation_says_what_its_server_used() -> None:
    command = [sys.executable, "-m", "fedwright.benchmarks.processes.growth_simulation", "3", "lenet-valid", "3"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)

    # 64,102 numbers of four bytes go down and up, once with the training graph besides.
    assert 2 * 4 * 64102 * 0.8 < found["bytes per device"] < 2 * 4 * 64102 * 1.5
    assert 0 < found["server CPU s"] < 10
    assert found["server MB more"] < 500
