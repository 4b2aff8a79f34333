"""Processes that a benchmark started, with all that they started: their time, their memory and their end."""

import contextlib
import os
import signal
import subprocess
import threading
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import psutil

SAMPLE_S = 0.5


def start(command: Sequence[str], *, log: Path, env: dict[str, str] | None = None) -> "subprocess.Popen[bytes]":
    """Start a program in a session of its own, with what it says in a file."""
    with log.open("ab") as file:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(env or {})},
            start_new_session=True,
        )


def kill(process: "subprocess.Popen[bytes]") -> None:
    """End a program and all that it started, also in sessions of their own, at once, as a power cut would."""
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                child.kill()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def below(pid: int) -> list[int]:
    """All processes that a process started, and those that they started."""
    with contextlib.suppress(psutil.Error):
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    return []


def command_of(pid: int) -> str:
    """The command line of a process; nothing once it has ended."""
    with contextlib.suppress(psutil.Error):
        return " ".join(psutil.Process(pid).cmdline())
    return ""


def cpu_s(pid: int) -> float:
    """CPU seconds of a process, of those that live below it and of those below it that have ended."""
    total = 0.0
    with contextlib.suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        for process in [root, *root.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                total += sum(process.cpu_times()[:4])
    return total


class MemoryWatch:
    """Samples the memory of process trees from a thread; `peaks` has the largest sum of each."""

    def __init__(self, roots: Sequence[int]) -> None:
        self._roots = list(roots)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.peaks: dict[int, int] = dict.fromkeys(roots, 0)

    def __enter__(self) -> "MemoryWatch":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._done.wait(SAMPLE_S):
            rss, children = _snapshot()
            for root in self._roots:
                self.peaks[root] = max(self.peaks[root], _sum(root, rss, children))


def _snapshot() -> tuple[dict[int, int], dict[int, list[int]]]:
    """Memory of every process and who started whom."""
    rss: dict[int, int] = {}
    children: dict[int, list[int]] = defaultdict(list)
    for process in psutil.process_iter(["ppid", "memory_info"]):
        if process.info["memory_info"] is not None:
            rss[process.pid] = process.info["memory_info"].rss
            children[process.info["ppid"]].append(process.pid)
    return rss, children


def _sum(root: int, rss: dict[int, int], children: dict[int, list[int]]) -> int:
    return rss.get(root, 0) + sum(_sum(child, rss, children) for child in children.get(root, ()))
