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


def states(folder: Path, method: dict[str, Any], *, secure: bool) -> dict[str, Any]:
    sections = {**FLEET, "model": {"model": "mlp"}, "public": {"rows": 20}, "update": {"secure": secure}}
    simulated = simulate(*make_config(folder, rounds=2, method=method, **sections))
    return tensors.load(state_of(simulated.folder))


def test_logits_are_agreed_on_in_sums_and_models_stay_on_their_devices(tmp_path: Path) -> None:
    method = {"name": "fedmd", "own": {"models": ["mlp", "cnn-small"]}}
    plain, summed = (states(tmp_path / str(secure), method, secure=secure) for secure in (False, True))

    # Two rounds of training on each other's logits, each off by rounding alone.
    np.testing.assert_allclose(summed["consensus"], plain["consensus"], atol=1e-3)
    moved = {name.split("/")[1] for name in plain if "/" in name and not np.array_equal(plain[name], summed[name])}
    assert moved >= {f"device-{number}" for number in range(9)}
    # What the server has of own models is where all of an architecture began.
    names = [name for name in summed if name.endswith("/head.weight")]
    assert len({summed[name].tobytes() for name in names}) == 2


def test_a_head_learns_from_class_means_in_sums(tmp_path: Path) -> None:
    method = {"name": "fedgh"}
    plain, summed = (states(tmp_path / str(secure), method, secure=secure) for secure in (False, True))

    assert not np.array_equal(summed["head/weight"], summed["models/device-0/head.weight"])
    # One step for the mean of all devices in place of one for each of nine.
    assert 0 < np.abs(summed["head/weight"] - plain["head/weight"]).max() < 1.0


WRITTEN: dict[str, dict[str, Any]] = {
    "framp": {"name": "framp", "alike": 3, "align": 0, "granularity": "channel", "sizes": [1.0]},
    "hyperflora": {"name": "hyperflora", "alike": 3, "pairs": False, "pretrain_rounds": 1},
    "pfedhn": {"name": "pfedhn", "alike": 3, "parallel": True},
}


@pytest.mark.parametrize("name", WRITTEN)
def test_a_hypernetwork_learns_from_sums_as_from_the_changes_themselves(tmp_path: Path, name: str) -> None:
    found = []
    for secure in (False, True):
        # Nine devices in three groups; samples are as many for all, so that devices count alike in either.
        split = {**FLEET["simulate"], "rows": 540, "partition": "few-classes", "per_device": 2}
        model = {"model": "cnn-lora" if name == "hyperflora" else "cnn-small"}
        sections = {**FLEET, "simulate": split, "model": model, "update": {"secure": secure, "norm_factor": 0}}
        simulated = simulate(*make_config(tmp_path / str(secure), rounds=2, method=WRITTEN[name], **sections))
        assert [metrics["updates"] for metrics in simulated.outcome.metrics] == [9.0, 9.0]
        found.append(tensors.load(state_of(simulated.folder)))

    plain, summed = found
    shared = [value.tobytes() for key, value in plain.items() if key.startswith("known/")]
    assert 2 <= len(set(shared)) <= 3
    for tensor, value in plain.items():
        # FRAMP takes an entry that a device left as it was for one that it did not have, which a sum does not tell.
        np.testing.assert_allclose(summed[tensor], value, atol=1e-3 if name == "framp" else 1e-4, err_msg=tensor)
    assert any(not np.array_equal(summed[tensor], value) for tensor, value in plain.items())
