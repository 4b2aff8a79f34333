"""Simulated devices whose changes are seen in sums only, beside the same run in the open."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedwright.protocol import tensors
from fedwright.simulation.simulate import simulate
from helpers.resume import state_of
from helpers.simulation import make_config

# Digits in equal shares for nine devices: every size has three of them or more.
FLEET: dict[str, Any] = {
    "fleet": {"devices": 9},
    "simulate": {"devices": 9, "rows": 360, "partition": "iid", "evaluate_every": 2},
}
METHODS: dict[str, dict[str, Any]] = {
    "fedprox": {"method": {"name": "fedprox"}},
    "heterofl": {
        "method": {"name": "heterofl", "masked": False, "levels": {"sizes": [1.0, 0.5]}},
        "model": {"model": "cnn-gn"},
    },
    "hasa": {"method": {"name": "hasa", "width_step": 0.5}},
    "fedconv": {
        "method": {
            "name": "fedconv",
            "group": "ratio",
            "levels": {"sizes": [1.0, 0.5]},
            **dict.fromkeys(("pretrain_epochs", "compress_epochs", "again_epochs", "dilate_epochs", "weigh_epochs"), 1),
        },
        "model": {"model": "cnn-gn"},
    },
}


@pytest.mark.parametrize("name", METHODS)
def test_a_simulation_of_sums_ends_where_one_in_the_open_does(tmp_path: Path, name: str) -> None:
    states = []
    for secure in (False, True):
        sections = {**FLEET, **METHODS[name], "update": {"secure": secure}}
        simulated = simulate(*make_config(tmp_path / str(secure), rounds=2, **sections))
        assert [metrics["updates"] for metrics in simulated.outcome.metrics] == [9.0, 9.0]
        states.append(tensors.load(state_of(simulated.folder)))

    plain, summed = states
    for tensor, value in plain.items():
        # FedConv's server knows of devices' own models the mean over their sum, which is another model to measure.
        if not tensor.startswith("own/"):
            np.testing.assert_allclose(summed[tensor], value, atol=1e-5)
    assert any(not np.array_equal(summed[tensor], value) for tensor, value in plain.items())
