"""Measures the device anew when its server asks for it: in a process beside the agent, while there is no task."""

import logging
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

log = logging.getLogger(__name__)

# However often a server asks; a measurement takes some seconds to a minute.
LEAST_S = 600.0


class SelfMeasurement:
    """One at a time, and only when nothing disturbs it; command: what measures and keeps what it found.

    read: reads what is kept then. Without a command the device measures nothing by itself.
    """

    def __init__(
        self,
        command: Sequence[str] = (),
        read: Callable[[], bytes | None] = lambda: None,
        *,
        log_file: Path | None = None,
    ) -> None:
        self._command = list(command)
        self._read = read
        self.found: bytes | None = None
        self._log_file = log_file
        self._wanted = False
        self._asked_s = -LEAST_S
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def runs(self) -> bool:
        """Whether one is under way."""
        return self._child is not None

    @property
    def waits(self) -> bool:
        """Whether one is due as soon as nothing keeps it."""
        return self._wanted

    def want(self, now_s: float) -> None:
        """A server asks for it."""
        if self._command and now_s - self._asked_s >= LEAST_S:
            self._wanted, self._asked_s = True, now_s

    def tend(self, *, idle: bool) -> bool:
        """Begin, stop or finish what is due; True when there is a new profile, `found`."""
        if self._child is None:
            if self._wanted and idle:
                self._begin()
            return False
        if not idle:
            # A task has come, beside which it would measure wrongly, or the owner's hours are over: again later.
            self.close()
            self._wanted = True
            return False
        code = self._child.poll()
        if code is None:
            return False
        self._child = None
        if code:
            log.warning("the device could not measure itself (exit code %d); see `fedwright device profile`", code)
            return False
        log.info("the device has measured itself anew")
        self.found = self._read()
        return self.found is not None

    def _begin(self) -> None:
        self._wanted = False
        log.info("the server asks this device to measure itself; that begins now")
        with open(self._log_file or "/dev/null", "wb") as out:
            self._child = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)

    def close(self) -> None:
        """End what runs."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            self._child = None


def measuring_command(state: Path, *, threads: int, provider: str) -> list[str]:
    """The command that measures this device and keeps what it found with its state."""
    words = [sys.executable, "-m", "fedwright", "device", "profile", "--state", str(state), "--provider", provider]
    return [*words, "--threads", str(threads or 1)]
