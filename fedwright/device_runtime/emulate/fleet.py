"""A fleet of emulated devices: starts them, watches them, stops them in good order."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType

from fedwright.device_runtime.emulate.device import EmulatedDevice, Host, Outcome
from fedwright.device_runtime.emulate.limits import CpuLimiter, cpu_limiter
from fedwright.device_runtime.emulate.meter import Meter
from fedwright.device_runtime.emulate.profiles import DeviceProfile, load_profile

# The rest of the host's cores is for the server and the broker.
USABLE_CORES = 0.8


class EmulatedFleet:
    """Emulated devices by id; leaving the `with` block stops them all."""

    def __init__(self, folder: Path, *, slowdown: float = 1.0, limiter: CpuLimiter | None = None) -> None:
        self._host = Host(folder, limiter or cpu_limiter(), Meter(), slowdown)
        self.devices: dict[str, EmulatedDevice] = {}

    def start(self, device: str, profile: str | DeviceProfile, command: Sequence[str]) -> EmulatedDevice:
        """Start one device with a profile of its own or one from the package, by name."""
        found = load_profile(profile) if isinstance(profile, str) else profile
        started = EmulatedDevice(device, found, command=command, host=self._host)
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
        self._host.meter.close()
        self._host.limiter.close()

    def __enter__(self) -> "EmulatedFleet":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def device_ids(profiles: Iterable[str]) -> list[tuple[str, str]]:
    """(id, profile) for each device: the profile's short name and a number, such as pi4-2."""
    seen: dict[str, int] = {}
    ids = []
    for profile in profiles:
        seen[profile] = seen.get(profile, 0) + 1
        ids.append((f"{load_profile(profile).short}-{seen[profile]}", profile))
    return ids


def fitting_slowdown(profiles: Iterable[str], cores: int | None = None) -> float:
    """How much slower all devices must run so that together they fit on this machine and keep their ratios."""
    wanted = sum(load_profile(profile).cpu_share for profile in profiles)
    return max(1.0, wanted / (USABLE_CORES * (cores or len(os.sched_getaffinity(0)))))
