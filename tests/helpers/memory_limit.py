"""A memory limit for the processes of a device: by the kernel where a group can be made, else by a watcher like it.

The watcher is what programs such as earlyoom are: it ends, of the processes that it watches, the one that the kernel's
own score names.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

import psutil

GROUPS = Path("/sys/fs/cgroup")
REMOVE_S = 30.0
LOOK_S = 0.01
# By version: what is in use, the limit, and what keeps swap from being used instead.
FILES = {
    1: ("memory.usage_in_bytes", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"),
    2: ("memory.current", "memory.max", "memory.swap.max"),
}


class MemoryLimit(Protocol):
    """before: words of a shell that put a process under the limit."""

    before: str

    def leave(self, agent: int, room_bytes: int) -> None:
        """From now on the processes of this agent may take so much more than they have."""
        ...


class _Group:
    def __init__(self, folder: Path, version: int) -> None:
        self.before = f"echo $$ > {folder / 'cgroup.procs'};"
        self._folder = folder
        self._used, self._limit, self._swap = FILES[version]

    def leave(self, agent: int, room_bytes: int) -> None:
        """See MemoryLimit."""
        del agent
        most = int((self._folder / self._used).read_text()) + room_bytes
        (self._folder / self._limit).write_text(str(most))
        with suppress(OSError):
            (self._folder / self._swap).write_text(str(most) if "memsw" in self._swap else "0")

    def remove(self) -> None:
        """Take the group away once its processes are gone."""
        until_s = time.monotonic() + REMOVE_S
        while True:
            try:
                return self._folder.rmdir()
            except OSError:
                if time.monotonic() > until_s:
                    raise
                os.sched_yield()


class _Watcher:
    """Looks at the most memory that each process ever had, which does not pass unseen."""

    before = ""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def leave(self, agent: int, room_bytes: int) -> None:
        """See MemoryLimit."""
        most = sum(map(_peak_bytes, _family(agent))) + room_bytes
        self._thread = threading.Thread(target=self._watch, args=(agent, most))
        self._thread.start()

    def _watch(self, agent: int, most_bytes: int) -> None:
        while not self._over.wait(LOOK_S):
            with suppress(psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
                family = _family(agent)
                if sum(map(_peak_bytes, family)) > most_bytes:
                    os.kill(max(family, key=_score), signal.SIGKILL)

    def remove(self) -> None:
        """Stop looking."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()


def _family(agent: int) -> list[int]:
    return [agent, *(child.pid for child in psutil.Process(agent).children())]


def _peak_bytes(pid: int) -> int:
    """0 for one that has ended and was not waited for."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)


def _score(pid: int) -> int:
    return int(Path(f"/proc/{pid}/oom_score").read_text())


def _make_group() -> _Group | None:
    """A memory group of our own beside or below the one that this process is in; None where none can be made."""
    found = dict(line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines())
    name = f"fedwright-{os.getpid()}-{threading.get_ident()}"
    own = {1: (GROUPS / "memory", found.get("memory")), 2: (GROUPS, found.get(""))}
    for version, (root, path) in own.items():
        if path is None:
            continue
        below = root / path.lstrip("/")
        # In version 2 a group that has processes hands nothing down; the one above it does already.
        for parent in (below, *([below.parent] if below != root else [])):
            with suppress(OSError):
                folder = parent / name
                folder.mkdir()
                if all(os.access(folder / file, os.W_OK) for file in (FILES[version][1], "cgroup.procs")):
                    return _Group(folder, version)
                folder.rmdir()
    return None


def _kernel_can() -> bool:
    group = _make_group()
    if group is not None:
        group.remove()
    return group is not None


MAKERS: dict[str, Callable[[], _Group | _Watcher | None]] = {"watcher": _Watcher}
if _kernel_can():
    MAKERS["kernel"] = _make_group


@contextmanager
def memory_limit(by: str) -> Iterator[MemoryLimit]:
    """A limit by one of `MAKERS` until the block ends."""
    limit = MAKERS[by]()
    assert limit is not None
    try:
        yield limit
    finally:
        limit.remove()
