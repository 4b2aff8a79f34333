"""CPU limits are tried on a process that burns all the CPU it can get."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedwright.device_runtime.emulate.limits import CgroupLimiter, CpuLimiter, Governor, cpu_limiter
from fedwright.device_runtime.emulate.meter import Usage, process_cpu_s

BURN = "import sys\nprint('ready', flush=True)\nwhile True: pass"


@pytest.fixture
def burner() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([sys.executable, "-c", BURN], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def used_share(pid: int, seconds: float) -> float:
    """CPU share of a process over a stretch of time."""
    before_s = process_cpu_s(pid)
    threading.Event().wait(seconds)
    after_s = process_cpu_s(pid)
    assert before_s is not None
    assert after_s is not None
    return (after_s - before_s) / seconds


@pytest.fixture(params=["governor", "what this machine offers"])
def limiter(request: pytest.FixtureRequest) -> Iterator[CpuLimiter]:
    made: CpuLimiter = Governor() if request.param == "governor" else cpu_limiter()
    yield made
    made.close()


def test_a_process_is_held_to_its_share_and_let_go(limiter: CpuLimiter, burner: subprocess.Popen[str]) -> None:
    limiter.add(burner.pid, 0.1)
    held = used_share(burner.pid, 1.5)
    limiter.remove(burner.pid)

    assert held < 0.1 * 1.3
    # A busy machine may leave little to a free process for a while, but not for long.
    assert any(used_share(burner.pid, 0.3) > 0.2 for _ in range(30))


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
