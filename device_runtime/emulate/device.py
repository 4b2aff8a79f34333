"""One emulated device: the real agent in a child process that is held to a profile's limits."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedwright.device_runtime.config import AgentConfig
from fedwright.device_runtime.emulate.limits import CpuLimiter, Mechanism
from fedwright.device_runtime.emulate.meter import Meter
from fedwright.device_runtime.emulate.profiles import DeviceProfile
from fedwright.device_runtime.https_fetch import RATE_VARIABLE
from fedwright.device_runtime.service import arguments
from fedwright.protocol.errors import DeviceError
from fedwright.protocol.link.shaping import Shape

# Devices yield to the server and the broker, which a real fleet has on another machine.
NICE = 5
POLL_S = 0.02
STOP_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Enforced:
    """Which limits held a device, and the highest CPU share it was seen to use over a second.

    slowdown: how many times slower than its profile says it was made to run, because the host has too few cores.
    link: what its way to the broker let through, by a proxy that it was told to connect to. plug_pulls: how often it
    was killed on purpose so far.
    """

    memory_bytes: int
    cpu_share: float
    slowdown: float
    cpu_mechanism: Mechanism
    measured_share: float
    link: Shape | None = None
    link_mechanism: str = "none"
    plug_pulls: int = 0


@dataclass(frozen=True)
class EmulatedOutcome:
    """How a device's process ended and what it used in all. A negative exit code is a signal."""

    exit_code: int
    cpu_s: float
    peak_rss_bytes: int
    enforced: Enforced


@dataclass(frozen=True)
class Host:
    """What the emulated devices of one machine share; `slowdown` divides the CPU share of each."""

    folder: Path
    limiter: CpuLimiter
    meter: Meter
    slowdown: float = 1.0
    links: dict[str, Shape] = field(default_factory=dict)
    pulls: Counter[str] = field(default_factory=Counter)


class EmulatedDevice:
    """A running agent; start it from a thread that lives on, because it dies with the thread that started it."""

    def __init__(self, device: str, profile: DeviceProfile, *, command: Sequence[str], host: Host) -> None:
        self.device = device
        self.profile = profile
        self.command = list(command)
        self.log_file = host.folder / f"{device}.log"
        self.outcome: EmulatedOutcome | None = None
        self._host = host
        self._share = profile.cpu_share / host.slowdown
        host.folder.mkdir(parents=True, exist_ok=True)
        with self.log_file.open("ab") as log_file:
            self._process = subprocess.Popen(
                _command_line(profile, command),
                stdin=subprocess.DEVNULL,
                stdout=log_file,
                stderr=log_file,
                env=_environment(host.links.get(device)),
                # Ctrl-C on the terminal is for the parent, which then stops its devices in good order.
                start_new_session=True,
            )
        host.limiter.add(self._process.pid, self._share)
        self._usage = host.meter.add(self._process.pid)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def poll(self) -> EmulatedOutcome | None:
        """The outcome once the process has ended."""
        if self.outcome is None and self._has_ended():
            self.outcome = self._reap()
        return self.outcome

    def wait(self, timeout_s: float) -> EmulatedOutcome | None:
        """The outcome, if the process ends in time."""
        until_s = time.monotonic() + timeout_s
        while self.poll() is None and time.monotonic() < until_s:
            time.sleep(POLL_S)
        return self.outcome

    def ask_to_stop(self) -> None:
        """SIGTERM, at full speed so that leaving does not take long."""
        if self.poll() is None:
            self._host.limiter.remove(self.pid)
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL, as a pulled plug would."""
        if self.poll() is None:
            self._process.send_signal(signal.SIGKILL)

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> EmulatedOutcome:
        """Stop in good order, or by force when that takes too long."""
        self.ask_to_stop()
        outcome = self.wait(timeout_s)
        if outcome is None:
            self.kill()
            outcome = self.wait(timeout_s)
        if outcome is None:
            raise DeviceError(f"process {self.pid} of device {self.device} does not end; see {self.log_file}")
        return outcome

    def _has_ended(self) -> bool:
        # Only look: the process id must stay ours until the governor and the meter have let go of it.
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _reap(self) -> EmulatedOutcome:
        self._host.limiter.remove(self.pid)
        self._host.meter.remove(self.pid)
        _, status, used = os.wait4(self.pid, 0)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        return EmulatedOutcome(
            exit_code=self._process.returncode,
            cpu_s=used.ru_utime + used.ru_stime,
            peak_rss_bytes=self._usage.peak_rss_bytes,
            enforced=Enforced(
                memory_bytes=self.profile.memory_bytes,
                cpu_share=self._share,
                slowdown=self._host.slowdown,
                cpu_mechanism=self._host.limiter.mechanism,
                measured_share=self._usage.peak_share,
                link=self._host.links.get(self.device),
                link_mechanism="TCP proxy" if self.device in self._host.links else "none",
                plug_pulls=self._host.pulls[self.device],
            ),
        )


def agent_command(config: AgentConfig) -> list[str]:
    """The command line of an agent with this config."""
    return [sys.executable, "-m", "fedwright", "device", "run", *arguments(config)]


def _command_line(profile: DeviceProfile, command: Sequence[str]) -> list[str]:
    launch = [sys.executable, "-m", "fedwright.device_runtime.emulate.child"]
    return [*launch, str(os.getpid()), str(profile.memory_bytes), str(NICE), *command]


def _environment(link: Shape | None) -> dict[str, str]:
    # A pool of threads as wide as the host would make the CPU share meaningless.
    single = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    rate = {} if link is None or link.bytes_per_s is None else {RATE_VARIABLE: str(link.bytes_per_s)}
    return {**os.environ, **single, **rate, "PYTHONUNBUFFERED": "1"}
