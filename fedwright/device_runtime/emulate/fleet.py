"""A fleet of emulated devices: starts them, watches them, stops them in good order."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType

from fedwright.device_runtime.emulate.device import EmulatedDevice, Outcome
from fedwright.device_runtime.emulate.limits import CpuLimiter, cpu_limiter
from fedwright.device_runtime.emulate.meter import Meter
from fedwright.device_runtime.emulate.profiles import load_profile


class EmulatedFleet:
    """Emulated devices by id; leaving the `with` block stops them all."""

    def __init__(self, folder: Path, limiter: CpuLimiter | None = None) -> None:
        self._folder = folder
        self._limiter = limiter or cpu_limiter()
        self._meter = Meter()
        self.devices: dict[str, EmulatedDevice] = {}

    def start(self, device: str, profile: str, command: Sequence[str]) -> EmulatedDevice:
        """Start one device."""
        started = EmulatedDevice(
            device,
            load_profile(profile),
            command=command,
            folder=self._folder,
            limiter=self._limiter,
            meter=self._meter,
        )
        self.devices[device] = started
        return started

    def ended(self) -> dict[str, Outcome]:
        """The outcomes of those that have ended."""
        outcomes = {device: running.poll() for device, running in self.devices.items()}
        return {device: outcome for device, outcome in outcomes.items() if outcome is not None}

    def wait(self, timeout_s: float) -> dict[str, Outcome]:
        """Wait for each device up to so long; the outcomes of those that have ended."""
        for running in self.devices.values():
            running.wait(timeout_s)
        return self.ended()

    def stop(self) -> dict[str, Outcome]:
        """Ask all to stop, then wait for each; the outcome of every device."""
        for running in self.devices.values():
            running.ask_to_stop()
        return {device: running.stop() for device, running in self.devices.items()}

    def close(self) -> None:
        """Stop all and let go of the limits."""
        self.stop()
        self._meter.close()
        self._limiter.close()

    def __enter__(self) -> "EmulatedFleet":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def device_ids(profiles: Iterable[str]) -> list[tuple[str, str]]:
    """(id, profile) for each device: the profile's name and a number, such as raspberry-pi-4-02."""
    seen: dict[str, int] = {}
    ids = []
    for profile in profiles:
        seen[profile] = seen.get(profile, 0) + 1
        ids.append((f"{profile}-{seen[profile]:02d}", profile))
    return ids
