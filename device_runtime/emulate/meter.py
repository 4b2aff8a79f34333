"""Measures what child processes use: CPU seconds, the highest CPU share over a while, the highest resident memory."""

import sys
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

import psutil

SAMPLE_S = 0.1
# Long enough that one quota period more or less does not show.
WINDOW_S = 1.0
# Going through all processes for children takes longer than asking one for its time.
LOOK_S = 0.5


@dataclass
class Usage:
    """What one process, with those that it started, has used so far."""

    cpu_s: float = 0.0
    peak_share: float = 0.0
    peak_rss_bytes: int = 0
    _past: deque[tuple[float, float]] = field(default_factory=deque, repr=False)

    def note(self, now_s: float, cpu_s: float, peak_rss_bytes: int) -> None:
        """Take one sample."""
        self.cpu_s = cpu_s
        self.peak_rss_bytes = max(self.peak_rss_bytes, peak_rss_bytes)
        self._past.append((now_s, cpu_s))
        while len(self._past) > 1 and now_s - self._past[1][0] >= WINDOW_S:
            self._past.popleft()
        first_s, first_cpu_s = self._past[0]
        if now_s - first_s >= WINDOW_S:
            self.peak_share = max(self.peak_share, (cpu_s - first_cpu_s) / (now_s - first_s))


class Meter:
    """Samples a set of processes in the background."""

    def __init__(self) -> None:
        self._usage: dict[int, tuple[Family, Usage]] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="usage-meter", daemon=True)
        self._thread.start()

    def add(self, pid: int) -> Usage:
        """Watch a process; the returned record stays up to date."""
        with self._lock:
            return self._usage.setdefault(pid, (Family(pid), Usage()))[1]

    def remove(self, pid: int) -> None:
        """Watch it no longer."""
        with self._lock:
            self._usage.pop(pid, None)

    def close(self) -> None:
        """Stop watching."""
        self._ended.set()
        self._thread.join()

    def _loop(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            with self._lock:
                for family, usage in self._usage.values():
                    cpu_s = family.cpu_s()
                    if cpu_s is not None:
                        usage.note(time.monotonic(), cpu_s, sum(map(peak_rss_bytes, family.members())))


class Family:
    """A process with those that it started, such as an agent with its training process."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._others: list[int] = []
        self._looked_s = float("-inf")
        self._used_s: dict[int, float] = {}

    def members(self) -> list[int]:
        """Their process ids; others than the first were there at the last look."""
        now_s = time.monotonic()
        if now_s - self._looked_s >= LOOK_S:
            self._looked_s = now_s
            try:
                self._others = [child.pid for child in psutil.Process(self._pid).children(recursive=True)]
            except psutil.Error:
                self._others = []
        return [self._pid, *self._others]

    def cpu_s(self) -> float | None:
        """CPU seconds of all so far, those that have ended included; None when the first is gone."""
        used_s = {pid: process_cpu_s(pid) for pid in self.members()}
        if used_s[self._pid] is None:
            return None
        self._used_s |= {pid: found for pid, found in used_s.items() if found is not None}
        return sum(self._used_s.values())


def process_cpu_s(pid: int) -> float | None:
    """CPU seconds of all threads of a process so far; None when it is gone."""
    if sys.platform == "linux":
        # What clock_getcpuclockid(3) returns: exact to the nanosecond, where /proc counts hundredths of a second.
        try:
            return time.clock_gettime((~pid << 3) | 2)
        except OSError:
            return None
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return None
    return float(times.user + times.system)


def peak_rss_bytes(pid: int) -> int:
    """The highest resident memory of a process; 0 when it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    line = next((line for line in status.splitlines() if line.startswith("VmHWM:")), None)
    return int(line.split()[1]) * 1024 if line else 0
