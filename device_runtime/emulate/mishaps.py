"""Pulled plugs and absences of emulated devices, drawn from their profiles."""

import logging
import random
import threading
import time

from fedwright.device_runtime.emulate.fleet import EmulatedFleet

log = logging.getLogger(__name__)

TICK_S = 0.1


class Mishaps:
    """Kills devices at random moments and starts them again after their absence; use it in a `with` block.

    The time until the next loss of power and its length are exponential with the profile's means. A device whose
    profile has none is left in peace. Devices live no longer than the thread that started them, so those that came
    back end with this block: end it after the run.
    """

    def __init__(self, fleet: EmulatedFleet, *, seed: int, speed: float = 1.0) -> None:
        """speed: how many times faster than in the profiles mishaps come and go."""
        self._fleet = fleet
        self._random = random.Random(seed)
        self._speed = speed
        self._ended = threading.Event()
        self._ceased = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="mishaps", daemon=True)
        self.pulled: list[str] = []

    def __enter__(self) -> "Mishaps":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def cease(self) -> None:
        """No device loses its power any more, and those without it stay off; the run is over."""
        self._ceased.set()

    def _loop(self) -> None:
        now_s = time.monotonic()
        due: dict[str, float] = {}
        away: set[str] = set()
        for device, running in sorted(self._fleet.devices.items()):
            if running.profile.up_s is not None:
                due[device] = now_s + self._draw_s(running.profile.up_s.value)
        while not self._ended.wait(TICK_S):
            if self._ceased.is_set():
                continue
            for device in [name for name, at_s in due.items() if at_s <= time.monotonic()]:
                profile = self._fleet.devices[device].profile
                if device in away:
                    away.remove(device)
                    self._fleet.plug_in(device)
                    wait_s = self._draw_s(profile.up_s.value if profile.up_s else 0.0)
                    log.info("device %s is back", device)
                elif self._fleet.devices[device].poll() is not None:
                    # It left by itself: its run is over.
                    del due[device]
                    continue
                else:
                    self._fleet.pull_plug(device)
                    self.pulled.append(device)
                    away.add(device)
                    wait_s = self._draw_s(profile.away_s.value if profile.away_s else 1.0)
                    log.info("device %s lost its power for %.1f s", device, wait_s)
                due[device] = time.monotonic() + wait_s

    def _draw_s(self, mean_s: float) -> float:
        return self._random.expovariate(1.0 / max(1e-9, mean_s)) / self._speed
