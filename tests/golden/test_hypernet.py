"""The toy that showed the printed sign of FRAMP's server step to be wrong: its distances, with either sign."""

import numpy as np
import pytest

from fedwright.server_runtime.blocks.hypernet import Hypernet, HypernetForm, HypernetStart, Step

START, STEPS = 3.96, 3
# The toy's own network is not on record, only β = 0.05 and its distances. A step moves the written weights by
# β (1 + ||h||²) of the change, and both distances follow from three steps of 0.143: 3.96 (1 ∓ 0.143)³, so that in the
# toy ||h||² must have been 1.86. Here ||h|| is another and β makes up for it. One step cannot give both: it is
# symmetric.
REACH = 0.143


@pytest.mark.parametrize(("sign", "distance"), [(1, 2.49), (-1, 5.91)], ids=["corrected", "printed"])
def test_distances_to_the_devices_result(sign: int, distance: float) -> None:
    net = Hypernet(HypernetForm(4, 8, norm=1.0), HypernetStart({"w": np.zeros(16, np.float32)}, {}, 0.0), seed=0)
    row, final = np.ones((1, 4), np.float32), np.full(16, START / 4, np.float32)
    step = Step(REACH / net.reach(row, Step(1.0)))

    for _ in range(STEPS):
        net.add(row[0], {"w": sign * (final - net.generate(row)[0]["w"])})
        net.learn(step)

    assert np.linalg.norm(net.generate(row)[0]["w"] - final) == pytest.approx(distance, abs=0.005)
