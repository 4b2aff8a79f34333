"""Limits on the CPU share of a child process: cgroup quota where writable, else a stop/continue governor."""

import contextlib
import logging
import os
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from fedwright.device_runtime.emulate.meter import Family

log = logging.getLogger(__name__)

CGROUP_ROOT = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")
# Short enough that a message waits little for its device, long enough that the kernel's own slice does not blur it.
PERIOD_US = 50_000
TICK_S = 0.005
BURST_S = 0.05

Mechanism = Literal["cgroup v1 quota", "cgroup v2 quota", "stop/continue governor"]


class CpuLimiter(Protocol):
    """Holds processes to a share of one core.

    - `add` MUST hold the process with all of its threads, and all that it started or starts, to `share` from now on.
    - `remove` MUST let it run freely again.
    - A process that is gone, or was never added, MUST be no error.
    - `close` MUST remove all.
    """

    @property
    def mechanism(self) -> Mechanism:
        """How it is done, for the results."""
        ...

    def add(self, pid: int, share: float) -> None:
        """Hold a process to a share of one core."""
        ...

    def remove(self, pid: int) -> None:
        """Let a process go."""
        ...

    def close(self) -> None:
        """Let all go."""
        ...


def cpu_limiter(root: Path = CGROUP_ROOT, own: Path = OWN_CGROUP) -> CpuLimiter:
    """The best limiter that works here; tried, not assumed."""
    for version, parent in _candidates(root, own):
        limiter = CgroupLimiter(parent, version)
        if limiter.works():
            return limiter
    log.info("no writable cgroup with a cpu controller; emulated devices are stopped and continued instead")
    return Governor()


def _candidates(root: Path, own: Path) -> list[tuple[Literal[1, 2], Path]]:
    """Folders in which a cgroup of ours could be made, most modest first."""
    found: list[tuple[Literal[1, 2], Path]] = []
    lines = own.read_text().splitlines() if own.exists() else []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        here = Path(path.lstrip("/"))
        if not controllers and (root / "cgroup.controllers").exists():
            found += [(2, root / here), (2, (root / here).parent), (2, root)]
        if "cpu" in controllers.split(","):
            found += [(1, root / controllers / here), (1, root / controllers)]
    return [(version, path) for version, path in found if path == root or root in path.parents]


class CgroupLimiter:
    """One cgroup with a cpu quota for each process."""

    def __init__(self, parent: Path, version: Literal[1, 2]) -> None:
        self._parent = parent
        self._version = version
        self._groups: dict[int, Path] = {}

    @property
    def mechanism(self) -> Mechanism:
        """How it is done, for the results."""
        return "cgroup v1 quota" if self._version == 1 else "cgroup v2 quota"

    def works(self) -> bool:
        """Whether a cgroup with a quota can be made here."""
        self._sweep()
        group = self._name("probe")
        try:
            self._make(group, 0.5)
        except OSError:
            works = False
        else:
            works = True
        with contextlib.suppress(OSError):
            group.rmdir()
        return works

    def add(self, pid: int, share: float) -> None:
        """Hold a process to a share of one core."""
        group = self._name(str(pid))
        self._make(group, share)
        self._groups[pid] = group
        # What it starts from now on is born in the group; what it had started follows.
        _move(pid, group)
        for member in Family(pid).members():
            _move(member, group)

    def remove(self, pid: int) -> None:
        """Let a process go."""
        group = self._groups.pop(pid, None)
        if group is None:
            return
        # Unlimited first: a kernel may leave a process that moves while it is throttled asleep for good.
        with contextlib.suppress(OSError):
            self._set_quota(group, None)
        # With it the processes that it started.
        for member in _members(group):
            with contextlib.suppress(OSError):
                (self._parent / "cgroup.procs").write_text(member)
        with contextlib.suppress(OSError):
            group.rmdir()

    def close(self) -> None:
        """Let all go."""
        for pid in list(self._groups):
            self.remove(pid)
        self._sweep()

    def _name(self, suffix: str) -> Path:
        return self._parent / f"fedwright-{os.getpid()}-{suffix}"

    def _make(self, group: Path, share: float) -> None:
        if self._version == 2 and "cpu" not in (self._parent / "cgroup.subtree_control").read_text().split():
            (self._parent / "cgroup.subtree_control").write_text("+cpu")
        group.mkdir()
        self._set_quota(group, max(1000, round(share * PERIOD_US)))

    def _set_quota(self, group: Path, quota_us: int | None) -> None:
        if self._version == 2:
            (group / "cpu.max").write_text(f"{'max' if quota_us is None else quota_us} {PERIOD_US}")
        else:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(-1 if quota_us is None else quota_us))

    def _sweep(self) -> None:
        """Remove what earlier processes left behind; a cgroup that is in use refuses to go."""
        for group in self._parent.glob("fedwright-*"):
            owner = group.name.split("-")[1]
            if owner == str(os.getpid()) or not Path("/proc", owner).exists():
                with contextlib.suppress(OSError):
                    group.rmdir()


def _move(pid: int, group: Path) -> None:
    with contextlib.suppress(ProcessLookupError):
        (group / "cgroup.procs").write_text(str(pid))


def _members(group: Path) -> list[str]:
    try:
        return (group / "cgroup.procs").read_text().split()
    except OSError:
        return []


@dataclass
class _Held:
    """A process with those it started: CPU time they may still use, and what they had used at the last look."""

    family: Family
    share: float
    used_s: float
    allowance_s: float = 0.0
    stopped: bool = False


class Governor:
    """Stops a process when it has used its share and continues it when it has earned more; needs no privilege."""

    def __init__(self) -> None:
        self._held: dict[int, _Held] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="cpu-governor", daemon=True)
        self._thread.start()

    @property
    def mechanism(self) -> Mechanism:
        """How it is done, for the results."""
        return "stop/continue governor"

    def add(self, pid: int, share: float) -> None:
        """Hold a process to a share of one core."""
        with self._lock:
            family = Family(pid)
            self._held[pid] = _Held(family, share, family.cpu_s() or 0.0)

    def remove(self, pid: int) -> None:
        """Let a process go."""
        with self._lock:
            held = self._held.pop(pid, None)
            if held is not None and held.stopped:
                _send(held.family, signal.SIGCONT)

    def close(self) -> None:
        """Let all go."""
        self._ended.set()
        self._thread.join()
        for pid in list(self._held):
            self.remove(pid)

    def _loop(self) -> None:
        last_s = time.monotonic()
        while not self._ended.wait(TICK_S):
            now_s = time.monotonic()
            with self._lock:
                for held in self._held.values():
                    _govern(held, now_s - last_s)
            last_s = now_s


def _govern(held: _Held, elapsed_s: float) -> None:
    """One tick: earn, pay for what was used, then stop or continue."""
    used_s = held.family.cpu_s()
    if used_s is None:
        return
    earned_s = min(held.share * BURST_S, held.allowance_s + held.share * elapsed_s)
    held.allowance_s = earned_s - (used_s - held.used_s)
    held.used_s = used_s
    if held.stopped == (held.allowance_s <= 0):
        return
    held.stopped = not held.stopped
    _send(held.family, signal.SIGSTOP if held.stopped else signal.SIGCONT)


def _send(family: Family, sign: signal.Signals) -> None:
    for pid in family.members():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, sign)
