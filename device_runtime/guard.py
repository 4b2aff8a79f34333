"""Never starve or cook the board: training pauses while it is too hot, too empty or too busy, and goes on after."""

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from fedwright.device_runtime import facts
from fedwright.device_runtime.policy import minute_of_day
from fedwright.protocol.errors import ConfigError

log = logging.getLogger(__name__)

# Sensors are files: cheap, but not so cheap as to be read at every step.
LOOK_S = 2.0
# Going on only when well inside the limits keeps a board from flapping around them.
COOLER_C, FULLER_RATIO, CALMER_RATIO = 5.0, 0.05, 0.1


@dataclass(frozen=True)
class Limits:
    """When to pause; None is no limit.

    load: what others ask of the processor, per core (1.0 = every core is busy with others). may_work: whether a minute
    of the day is one to work at.
    """

    most_temperature_c: float | None = None
    least_battery_ratio: float | None = None
    most_load_ratio: float | None = None
    may_work: Callable[[int], bool] | None = None

    def __post_init__(self) -> None:
        """Check values."""
        if self.least_battery_ratio is not None and not 0 <= self.least_battery_ratio <= 1:
            raise ConfigError(f"least_battery_ratio is {self.least_battery_ratio} but must be between 0 and 1")
        for name in ("most_temperature_c", "most_load_ratio"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ConfigError(f"{name} is {value} but must be above 0")

    def given(self) -> bool:
        """Whether there is anything to watch."""
        sensed = (self.most_temperature_c, self.least_battery_ratio, self.most_load_ratio)
        return any(value is not None for value in (*sensed, self.may_work))


@dataclass(frozen=True)
class BoardState:
    """How the board does now; None where it cannot tell."""

    temperature_c: float | None = None
    battery_ratio: float | None = None
    on_battery: bool | None = None
    load_ratio: float | None = None
    minute: int = 0


def board_state(threads: int) -> BoardState:
    """The sensors of this board; the load counts what others run beside our own threads."""
    health = facts.health()
    others = max(0.0, os.getloadavg()[0] - threads) / facts.cores()
    return BoardState(health.temperature_c, health.battery_ratio, health.on_battery, others, minute_of_day())


class Guard:
    """Holds training back while a limit is passed. `look`, `clock` and `wait` are replaced in tests."""

    def __init__(
        self,
        limits: Limits,
        look: Callable[[], BoardState],
        *,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        self._limits = limits
        self._look = look
        self._clock = clock
        self._looked_s = float("-inf")
        self._wait = wait
        self.pauses = 0
        self.paused_s = 0.0

    def watching(self, should_stop: Callable[[], bool]) -> Callable[[], bool]:
        """The same question, answered only when the board may go on (or must stop)."""

        def may_stop() -> bool:
            if not should_stop() and self._clock() - self._looked_s >= LOOK_S:
                self._hold(should_stop)
            return should_stop()

        return may_stop

    def _hold(self, should_stop: Callable[[], bool]) -> None:
        began_s = self._clock()
        problem = self.problem(self._look())
        if problem is not None:
            self.pauses += 1
            log.warning("training pauses: %s", problem)
            while problem is not None and not should_stop():
                self._wait(LOOK_S)
                problem = self.problem(self._look(), resuming=True)
            self.paused_s += self._clock() - began_s
            log.info("training goes on after %.0f s", self._clock() - began_s)
        self._looked_s = self._clock()

    def problem(self, state: BoardState, *, resuming: bool = False) -> str | None:
        """Which limit is passed; to resume, all must be kept with something to spare."""
        slack = 1.0 if resuming else 0.0
        limits, hot, left, load = self._limits, state.temperature_c, state.battery_ratio, state.load_ratio
        most_c, least, most_load = limits.most_temperature_c, limits.least_battery_ratio, limits.most_load_ratio
        if most_c is not None and hot is not None and hot > most_c - slack * COOLER_C:
            return f"{hot:.0f} °C, at most {most_c:.0f} °C are allowed"
        drains = state.on_battery is not False
        if least is not None and left is not None and drains and left < least + slack * FULLER_RATIO:
            return f"battery at {left:.0%}, at least {least:.0%} must stay"
        if limits.may_work is not None and not limits.may_work(state.minute):
            return "it is not an hour to work at"
        if most_load is not None and load is not None and load > most_load - slack * CALMER_RATIO:
            return f"others use {load:.0%} of the processor, at most {most_load:.0%} are allowed"
        return None
