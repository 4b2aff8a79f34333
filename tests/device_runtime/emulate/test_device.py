"""Emulated devices are child processes under real limits; small programs stand for the agent here."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from fedwright.device_runtime.config import AgentConfig
from fedwright.device_runtime.emulate.device import EmulatedDevice, Host, agent_command
from fedwright.device_runtime.emulate.fleet import EmulatedFleet, device_ids, fitting_slowdown
from fedwright.device_runtime.emulate.limits import Governor
from fedwright.device_runtime.emulate.meter import Meter
from fedwright.device_runtime.emulate.profiles import ProfileValue, load_profile

# Says that it is there, and ends well when it is asked to.
OBEDIENT = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
pathlib.Path(sys.argv[1]).touch()
while True: time.sleep(60)
"""
DEAF = OBEDIENT.replace("lambda *_: sys.exit(7)", "signal.SIG_IGN")
HUNGRY = """
import numpy, sys
try:
    numpy.ones(300_000_000, numpy.uint8)
except MemoryError:
    sys.exit(9)
"""
# Holds an emulated device and says its process id; the test then kills it.
PARENT = """
import pathlib, sys, time
from fedwright.device_runtime.emulate.fleet import EmulatedFleet
fleet = EmulatedFleet(pathlib.Path(sys.argv[1]))
print(fleet.start("pi", "raspberry-pi-4", [sys.executable, "-c", "import time; time.sleep(60)"]).pid, flush=True)
time.sleep(60)
"""


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[EmulatedFleet]:
    with EmulatedFleet(tmp_path / "logs") as made:
        yield made


def start_until_ready(fleet: EmulatedFleet, program: str, flag: Path) -> EmulatedDevice:
    """Start a program that makes the file `flag` when it is ready."""
    started = fleet.start("pi", "raspberry-pi-5", [sys.executable, "-c", program, str(flag)])
    for _ in range(1500):
        if flag.exists():
            return started
        started.wait(0.02)
    pytest.fail("the program never became ready")


def test_a_device_that_ends_by_itself_leaves_its_exit_code_and_log(fleet: EmulatedFleet) -> None:
    started_s = time.monotonic()
    started = fleet.start("pi", "raspberry-pi-4", [sys.executable, "-m", "fedwright", "--version"])

    outcome = started.wait(120)
    took_s = time.monotonic() - started_s

    assert outcome is not None
    assert outcome.exit_code == 0
    assert started.log_file.read_text().startswith("fedwright ")
    assert 0 < outcome.cpu_s < took_s
    assert outcome.enforced.cpu_share == pytest.approx(23.8 / 60)


def test_a_device_is_stopped_in_good_order(fleet: EmulatedFleet, tmp_path: Path) -> None:
    started = start_until_ready(fleet, OBEDIENT, tmp_path / "ready")

    assert fleet.ended() == {}
    assert started.stop().exit_code == 7
    assert fleet.ended().keys() == {"pi"}


def test_a_device_that_does_not_listen_is_killed(fleet: EmulatedFleet, tmp_path: Path) -> None:
    started = start_until_ready(fleet, DEAF, tmp_path / "ready")

    assert started.stop(timeout_s=0.5).exit_code == -signal.SIGKILL


@pytest.mark.parametrize(("limit_bytes", "exit_code"), [(200_000_000, 9), (2_000_000_000, 0)], ids=["small", "large"])
def test_the_memory_limit_is_real(tmp_path: Path, limit_bytes: int, exit_code: int) -> None:
    profile = replace(load_profile("laptop"), agent_bytes=ProfileValue(limit_bytes, "nominal", "this test"))
    host = Host(tmp_path, Governor(), Meter())

    started = EmulatedDevice("small", profile, command=[sys.executable, "-c", HUNGRY], host=host)
    outcome = started.wait(120)
    host.meter.close()
    host.limiter.close()

    assert outcome is not None
    assert outcome.exit_code == exit_code
    assert outcome.enforced.memory_bytes == limit_bytes


def test_a_device_dies_with_its_parent(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        device = psutil.Process(int(parent.stdout.readline()))
        parent.kill()

    # Whoever inherits it may be slow to collect it, so a zombie counts as dead.
    gone, _ = psutil.wait_procs([device], timeout=10)
    assert gone or device.status() == psutil.STATUS_ZOMBIE


def test_ids_number_the_devices_of_each_profile() -> None:
    assert device_ids(["pc", "phone", "pc"]) == [("pc-1", "pc"), ("phone-1", "phone"), ("pc-2", "pc")]


def test_the_agent_is_the_installed_command() -> None:
    command = agent_command(AgentConfig(broker="mqtt://h:1", device="pi", data="npz:d.npz", threads=1, once=True))

    assert command[:5] == [sys.executable, "-m", "fedwright", "device", "run"]
    assert {"--once", "mqtt://h:1", "npz:d.npz"} <= set(command)


def test_devices_that_do_not_fit_are_all_slowed_down_alike() -> None:
    # Two laptops want a whole core each; 80 % of two cores is 1.6.
    assert fitting_slowdown(["laptop", "laptop"], cores=2) == pytest.approx(2 / 1.6)
    assert fitting_slowdown(["laptop", "laptop"], cores=8) == 1.0


def test_the_slowdown_divides_the_share(tmp_path: Path) -> None:
    with EmulatedFleet(tmp_path, slowdown=4.0) as fleet:
        outcome = fleet.start("pc", "laptop", [sys.executable, "-c", "pass"]).wait(120)

    assert outcome is not None
    assert outcome.enforced.cpu_share == 0.25
    assert outcome.enforced.slowdown == 4.0
