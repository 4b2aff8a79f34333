"""CPU limits are tried on a process that burns all the CPU it can get."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedwright.device_runtime.emulate import limits
from fedwright.device_runtime.emulate.limits import CgroupLimiter, CpuLimiter, Governor, cpu_limiter
from fedwright.device_runtime.emulate.meter import Family, Usage, process_cpu_s

BURN = "import sys\nprint('ready', flush=True)\nwhile True: pass"


@contextmanager
def burning() -> Iterator[subprocess.Popen[str]]:
    """A process that takes all it can get."""
    with subprocess.Popen([sys.executable, "-c", BURN], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


@pytest.fixture
def burner() -> Iterator[subprocess.Popen[str]]:
    with burning() as process:
        yield process


def cpu_s(pid: int) -> float:
    """CPU seconds of a process that is there."""
    found_s = process_cpu_s(pid)
    assert found_s is not None
    return found_s


def shares(pid: int, windows: int) -> Iterator[float]:
    """CPU share of a process since now, over a stretch of time that becomes ever longer."""
    started_s, before_s = time.monotonic(), cpu_s(pid)
    for _ in range(windows):
        threading.Event().wait(0.5)
        yield (cpu_s(pid) - before_s) / (time.monotonic() - started_s)


def gained_s(pids: list[int]) -> list[float]:
    """CPU seconds that processes got in the same stretch of time."""
    before_s = [cpu_s(pid) for pid in pids]
    threading.Event().wait(0.3)
    return [cpu_s(pid) - used_s for pid, used_s in zip(pids, before_s, strict=True)]


@pytest.fixture(params=["governor", "what this machine offers"])
def limiter(request: pytest.FixtureRequest) -> Iterator[CpuLimiter]:
    made: CpuLimiter = Governor() if request.param == "governor" else cpu_limiter()
    yield made
    made.close()


def test_a_process_is_held_to_its_share_and_let_go(limiter: CpuLimiter, burner: subprocess.Popen[str]) -> None:
    limiter.add(burner.pid, 0.1)
    # A governor that a busy machine wakes late takes back what it gave too much.
    held = any(share < 0.1 * 1.3 for share in shares(burner.pid, 40))
    limiter.remove(burner.pid)

    assert held
    with burning() as free:
        gains = (gained_s([burner.pid, free.pid]) for _ in range(30))
        assert any(let_go_s > free_s / 2 for let_go_s, free_s in gains)


def test_a_governor_that_is_late_takes_back_what_it_gave_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process burns whenever it is let, and every tenth tick comes after 100 ms instead of 5: its mean holds."""
    used_s, running = 0.0, True
    signs: list[signal.Signals] = []
    monkeypatch.setattr(limits, "_send", lambda family, sign: signs.append(sign))
    family = Family(1)
    monkeypatch.setattr(family, "cpu_s", lambda: used_s)
    held = limits._Held(family, 0.1, 0.0)
    elapsed_s = 0.0
    for tick in range(2000):
        tick_s = 0.1 if tick % 10 == 0 else 0.005
        elapsed_s += tick_s
        used_s += tick_s if running else 0.0
        limits._govern(held, tick_s)
        running = signs[-1:] != [signal.SIGSTOP]

    assert 0.05 * elapsed_s < used_s < 0.1 * elapsed_s + 0.1
    assert signs[:2] == [signal.SIGSTOP, signal.SIGCONT]


def test_a_process_that_is_gone_is_no_error(limiter: CpuLimiter, burner: subprocess.Popen[str]) -> None:
    limiter.add(burner.pid, 0.25)
    burner.kill()
    burner.wait()

    limiter.remove(burner.pid)
    limiter.remove(burner.pid)
    limiter.add(burner.pid, 0.25)
    limiter.remove(burner.pid)


def test_without_cgroups_the_governor_is_chosen(tmp_path: Path) -> None:
    limiter = cpu_limiter(tmp_path, tmp_path / "absent")
    limiter.close()

    assert limiter.mechanism == "stop/continue governor"


def test_a_cgroup_tree_without_a_cpu_controller_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("memory pids")
    (tmp_path / "own").write_text("0::/user.slice\n")
    limiter = cpu_limiter(tmp_path, tmp_path / "own")
    limiter.close()

    assert limiter.mechanism == "stop/continue governor"


def test_version_2_quota_is_written_as_the_kernel_reads_it(tmp_path: Path) -> None:
    (tmp_path / "cgroup.subtree_control").write_text("cpu memory")
    limiter = CgroupLimiter(tmp_path, 2)

    limiter.add(4242, 0.4)

    (group,) = (path for path in tmp_path.iterdir() if path.is_dir())
    assert (group / "cpu.max").read_text() == "20000 50000"
    assert (group / "cgroup.procs").read_text() == "4242"


def test_peak_share_is_the_highest_over_one_second() -> None:
    usage = Usage()
    # Idle for a second, then half a core for two, then idle again; one sample each quarter of a second.
    cpu_s = 0.0
    for quarter in range(25):
        usage.note(quarter * 0.25, cpu_s, 1000 + quarter)
        cpu_s += 0.125 if 4 <= quarter < 12 else 0.0

    assert usage.peak_share == pytest.approx(0.5)
    assert usage.cpu_s == pytest.approx(1.0)
    assert usage.peak_rss_bytes == 1024


PARENT = """
import subprocess, sys
sys.stdin.readline()
burner = subprocess.Popen([sys.executable, "-c", "while True: pass"])
sys.stdout.write(f"{burner.pid}\\n")
sys.stdout.flush()
sys.stdin.read()
burner.kill()
burner.wait()
"""


@pytest.fixture
def parent() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", PARENT]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as process:
        yield process
        process.communicate("")


def start_burner(parent: subprocess.Popen[str]) -> int:
    """Let a parent start its burning child."""
    assert parent.stdin is not None
    assert parent.stdout is not None
    parent.stdin.write("start\n")
    return int(parent.stdout.readline())


def is_held(limiter: CpuLimiter, parent: int, child: int) -> bool:
    """Whether a child keeps to a quarter of a core."""
    held = any(share < 0.4 for share in shares(child, 40))
    limiter.remove(parent)
    return held


@pytest.mark.timeout(120)
def test_a_process_that_the_limited_one_starts_is_limited_too(
    limiter: CpuLimiter, parent: subprocess.Popen[str]
) -> None:
    limiter.add(parent.pid, 0.25)
    child = start_burner(parent)

    assert is_held(limiter, parent.pid, child)


@pytest.mark.timeout(120)
def test_a_process_that_was_started_before_is_limited_too(limiter: CpuLimiter, parent: subprocess.Popen[str]) -> None:
    child = start_burner(parent)
    limiter.add(parent.pid, 0.25)

    assert is_held(limiter, parent.pid, child)
