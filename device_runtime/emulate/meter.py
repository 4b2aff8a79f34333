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


@dataclass
class Usage:
    """What one process has used so far."""

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
        self._usage: dict[int, Usage] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="usage-meter", daemon=True)
        self._thread.start()

    def add(self, pid: int) -> Usage:
        """Watch a process; the returned record stays up to date."""
        with self._lock:
            return self._usage.setdefault(pid, Usage())

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
                for pid, usage in self._usage.items():
                    cpu_s = process_cpu_s(pid)
                    if cpu_s is not None:
                        usage.note(time.monotonic(), cpu_s, peak_rss_bytes(pid))


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
