"""An agent that nobody asks for anything: over a real broker it sleeps until a message comes."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fedwright.protocol.link.broker import Broker
from helpers.real_device import RealDevice

# All threads together looked at the clock four times a second before they slept.
WATCHED_S = 3.0


def wake_ups(pid: int) -> int:
    """How often the threads of a process went to sleep so far."""
    tasks = Path(f"/proc/{pid}/task").glob("*/status")
    return sum(int(re.findall(r"^voluntary_ctxt_switches:\s+(\d+)", task.read_text(), re.M)[0]) for task in tasks)


@pytest.fixture
def device(tmp_path: Path) -> Any:
    with Broker() as broker:
        found = RealDevice(broker, tmp_path, further=("--keep-alive", "3600"))
        yield found
        found.end()


def test_an_idle_agent_and_its_training_process_sleep(device: Any) -> None:
    device.does_an_honest_task()
    device.answers()
    processes = [device.process.pid, device.trainer]
    # The word on the last update, and what threads do on their way to sleep.
    with pytest.raises(subprocess.TimeoutExpired):
        device.process.wait(1.0)
    before = sum(map(wake_ups, processes))
    with pytest.raises(subprocess.TimeoutExpired):
        device.process.wait(WATCHED_S)

    assert sum(map(wake_ups, processes)) - before <= 1
    device.answers()


def test_an_idle_agent_pings_no_more_often_than_it_was_told_and_stays_with_the_broker(tmp_path: Path) -> None:
    with Broker() as broker:
        device = RealDevice(broker, tmp_path, further=("--keep-alive", "1"))
        with pytest.raises(subprocess.TimeoutExpired):
            device.process.wait(1.0)
        before = wake_ups(device.process.pid)
        with pytest.raises(subprocess.TimeoutExpired):
            device.process.wait(WATCHED_S)
        woken = wake_ups(device.process.pid) - before
        log = device.log
        device.answers()
        device.end()

    # A ping and its answer each time; the broker ends a connection after 1.5 s without.
    assert 2 <= woken <= 8
    assert "is gone" not in log


def test_an_idle_agent_ends_at_once_when_asked_to(device: Any) -> None:
    device.process.terminate()

    assert device.process.wait(10) == 0
