"""A fleet of emulated devices one of which loses its power in the middle of the run: it comes back, the run ends."""

import threading
from pathlib import Path
from typing import Any

import pytest

from fedwright.device_runtime.emulate.fleet import EmulatedFleet
from fedwright.device_runtime.emulate.mishaps import Mishaps
from fedwright.server_runtime.rounds import events
from fedwright.simulation import demo
from fedwright.simulation.demo import DemoOptions, run_demo

ROUNDS = 6


@pytest.mark.broker
@pytest.mark.slow
def test_a_device_whose_plug_is_pulled_comes_back_and_the_run_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, mishaps = threading.Event(), []

    class AfterTheFirstUpdate(Mishaps):
        """The same mishaps; the first comes when the run is under way, for half a second, and no other."""

        def __init__(self, fleet: EmulatedFleet, *, seed: int, speed: float = 1.0) -> None:
            super().__init__(fleet, seed=seed, speed=speed)
            self.waits = iter([0.0, 0.5, 1e9])
            mishaps.append(self)

        def _loop(self) -> None:
            begun.wait(120.0)
            super()._loop()

        def _draw_s(self, mean_s: float) -> float:
            return next(self.waits)

    def observe(event: Any) -> None:
        if isinstance(event, events.UpdateTaken):
            begun.set()

    monkeypatch.setattr(demo, "Mishaps", AfterTheFirstUpdate)
    options = DemoOptions("fedavg", 2, ROUNDS, keep=tmp_path / "kept", fleet="frail")

    result = run_demo(options, observe)

    # Of the fleet's first two only the first loses its power.
    assert mishaps[0].pulled == ["pi5-1"]
    frail, steady = result.devices["pi5-1"], result.devices["pi4-1"]
    assert (frail.exit.enforced.plug_pulls, steady.exit.enforced.plug_pulls) == (1, 0)
    assert (frail.exit.exit_code, steady.exit.exit_code) == (0, 0)
    assert [round_["updates"] for round_ in result.metrics] == [2.0] * ROUNDS
    assert result.model.exists()
