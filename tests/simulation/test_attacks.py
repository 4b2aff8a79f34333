"""Hostile devices of a simulation, and that the honest ones are not touched."""

from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from fedwright.server_runtime.config_sections.simulate import SimulateSection
from fedwright.simulation.attacks import Attack, spoil_change, spoil_rows, stamped
from fedwright.simulation.dealing import deal, local_data
from fedwright.simulation.simulate import hostile_devices, simulate
from helpers.simulation import make_config

CHANGE = {"w": np.array([3.0, 4.0], np.float32)}


def test_changes_that_are_flipped_scaled_or_drawn() -> None:
    np.testing.assert_allclose(spoil_change(CHANGE, "sign-flip", seed=1)["w"], [-9, -12])
    np.testing.assert_allclose(spoil_change(CHANGE, "scale", seed=1)["w"], [60, 80])
    drawn = spoil_change(CHANGE, "random", seed=1)["w"]
    # Five times as long as the honest one, whose norm is 5.
    assert np.linalg.norm(drawn) == pytest.approx(25)
    assert drawn.dtype == np.float32
    np.testing.assert_array_equal(spoil_change(CHANGE, "random", seed=1)["w"], drawn)
    assert spoil_change(CHANGE, "label-flip", seed=1) is CHANGE


def test_rows_that_are_flipped_or_stamped() -> None:
    dealt = deal(SimulateSection(devices=2, rows=60), seed=1)
    data = local_data(dealt, "device-0")

    flipped = spoil_rows(data, "label-flip")
    marked = spoil_rows(data, "back-door")

    np.testing.assert_array_equal(flipped.y, 9 - data.y)
    np.testing.assert_array_equal(marked.y[::2], 0)
    np.testing.assert_array_equal(marked.y[1::2], data.y[1::2])
    np.testing.assert_array_equal(marked.x[1::2], data.x[1::2])
    assert (marked.x[::2, ..., -3:, -3:] == data.x.max()).all()
    assert spoil_rows(data, "scale") is data
    assert (stamped(data.x)[..., :-3, :] == data.x[..., :-3, :]).all()


@pytest.mark.parametrize("attack", get_args(Attack))
def test_an_attack_changes_what_is_learnt_and_none_does_not(tmp_path: Path, attack: Attack) -> None:
    found = []
    for folder, hostile in (("peace", 0), ("war", 1)):
        simulated = {"hostile": hostile, "attack": attack, "evaluate_every": 0, "rows": 120}
        config, text = make_config(tmp_path / folder, rounds=1, simulate=simulated)
        assert hostile_devices(config.simulate, ["b", "a"]) == ["a"][:hostile]
        found.append(simulate(config, text).evaluations[-1])

    assert [d.loss for d in found[0].devices] != [d.loss for d in found[1].devices]


def test_more_hostile_devices_than_there_are() -> None:
    with pytest.raises(Exception, match="hostile is 3"):
        replace(SimulateSection(devices=2), hostile=3)
