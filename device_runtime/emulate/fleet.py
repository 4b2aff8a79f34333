"""A fleet of emulated devices: starts them, watches them, stops them in good order."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit

from fedwright.device_runtime.emulate.device import STOP_TIMEOUT_S, EmulatedDevice, EmulatedOutcome, Host
from fedwright.device_runtime.emulate.limits import CpuLimiter, cpu_limiter
from fedwright.device_runtime.emulate.meter import Meter
from fedwright.device_runtime.emulate.profiles import DeviceProfile, load_profile
from fedwright.protocol.errors import ConfigError
from fedwright.protocol.link.shaping import Proxy

# The rest of the host's cores is for the server and the broker.
USABLE_CORES = 0.8


class EmulatedFleet:
    """Emulated devices by id; leaving the `with` block stops them all."""

    def __init__(self, folder: Path, *, slowdown: float = 1.0, limiter: CpuLimiter | None = None) -> None:
        self._host = Host(folder, limiter or cpu_limiter(), Meter(), slowdown)
        self.devices: dict[str, EmulatedDevice] = {}
        self._proxies: dict[str, Proxy] = {}

    def link(self, device: str, profile: str | DeviceProfile, broker: str) -> str:
        """The address at which this device finds the broker: through a proxy when its profile says how its link is."""
        shape = (load_profile(profile) if isinstance(profile, str) else profile).link
        if shape is None:
            return broker
        parts = urlsplit(broker)
        if parts.scheme != "mqtt" or parts.hostname is None:
            raise ConfigError(f"a link to {broker} cannot be shaped; emulated devices need an mqtt:// broker")
        proxy = Proxy(parts.hostname, parts.port or 1883, shape, seed=len(self._proxies)).start()
        self._proxies[device] = proxy
        self._host.links[device] = shape
        return proxy.url

    def pull_plug(self, device: str) -> None:
        """Kill a device as a power cut would; `plug_in` starts it again."""
        self._host.pulls[device] += 1
        self.devices[device].kill()
        self.devices[device].wait(STOP_TIMEOUT_S)

    def plug_in(self, device: str) -> EmulatedDevice:
        """Start a device again with the command it had; its state is what was on its disk."""
        before = self.devices[device]
        return self.start(device, before.profile, before.command)

    def start(self, device: str, profile: str | DeviceProfile, command: Sequence[str]) -> EmulatedDevice:
        """Start one device with a profile of its own or one from the package, by name."""
        found = load_profile(profile) if isinstance(profile, str) else profile
        started = EmulatedDevice(device, found, command=command, host=self._host)
        self.devices[device] = started
        return started

    def ended(self) -> dict[str, EmulatedOutcome]:
        """The outcomes of those that have ended."""
        outcomes = {device: running.poll() for device, running in self.devices.items()}
        return {device: outcome for device, outcome in outcomes.items() if outcome is not None}

    def wait(self, timeout_s: float) -> dict[str, EmulatedOutcome]:
        """Wait for each device up to so long; the outcomes of those that have ended."""
        for running in self.devices.values():
            running.wait(timeout_s)
        return self.ended()

    def stop(self) -> dict[str, EmulatedOutcome]:
        """Ask all to stop, then wait for each; the outcome of every device."""
        for running in self.devices.values():
            running.ask_to_stop()
        return {device: running.stop() for device, running in self.devices.items()}

    def close(self) -> None:
        """Stop all and let go of the limits."""
        self.stop()
        for proxy in self._proxies.values():
            proxy.stop()
        self._proxies.clear()
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
