"""The bench `edges` on a small scale: fewer bytes at the host, the same weights."""

from pathlib import Path

import numpy as np
import pytest

from fedwright.benchmarks.suites.edges import measure
from fedwright.protocol.link.broker import Broker


@pytest.mark.broker
def test_an_edge_spares_the_host_bytes(tmp_path: Path) -> None:
    with Broker() as broker:
        flat, weights = measure(tmp_path / "flat", broker.url, edges=0, devices=3)
        edged, same = measure(tmp_path / "edged", broker.url, edges=1, devices=3)

    for name in ("MB received", "MB sent", "MB stored at most"):
        assert edged[name] < 0.75 * flat[name], name
    for name, value in weights.items():
        np.testing.assert_allclose(same[name], value, rtol=1e-5, atol=1e-6)
