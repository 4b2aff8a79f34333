"""Tasks that no honest server sends, to a real agent over a real broker: it answers, refuses with a reason, goes on."""

import os
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from fedwright.protocol.link.broker import Broker
from fedwright.protocol.messages import Ack, Refusal, Update
from helpers.hostile_graphs import dividing, endless, hoarding, huge
from helpers.memory_limit import MAKERS, memory_limit
from helpers.real_device import WAIT_S, RealDevice
from helpers.task_bench import wait_for_work
from helpers.tools import require_tool

pytestmark = [pytest.mark.broker, pytest.mark.slow]

FREE_BYTES = 1024**3


@pytest.fixture
def broker() -> Iterator[Broker]:
    require_tool("mosquitto")
    with Broker(kind="mosquitto") as started:
        yield started


def test_graphs_that_take_all_memory_or_end_their_process_are_refused_and_the_device_goes_on(
    broker: Broker, tmp_path: Path
) -> None:
    device = RealDevice(broker, tmp_path, before=f"ulimit -d {FREE_BYTES // 1024};")
    try:
        # 6 GB: once the graph's own shapes tell, once only its run does.
        for name, hidden in (("told", "shape"), ("hidden", True)):
            device.give(name, huge(1_500_000_000, hidden=hidden))
            refusal = device.hear(Refusal, Update)
            assert (refusal.task, refusal.reason) == (name, "over_budget" if hidden == "shape" else refusal.reason)
            assert isinstance(refusal, Refusal), refusal
            device.say(Ack(name))
            device.answers()
        device.give("dividing", dividing())
        refusal = device.hear(Refusal, Update)
        assert "begun 2 times" in refusal.detail
        assert "SIGFPE" in refusal.detail
        device.say(Ack("dividing"))
        device.does_an_honest_task()
    finally:
        device.end()


def test_an_endless_task_is_refused_after_two_lives_that_were_killed_in_it_and_a_stop_is_at_once(
    broker: Broker, tmp_path: Path
) -> None:
    device = RealDevice(broker, tmp_path)
    try:
        device.give("endless", endless())
        for _ in range(2):
            wait_for_work(device.trainer)
            device.answers()
            child = device.trainer
            device.process.send_signal(signal.SIGKILL)
            device.process.wait()
            psutil.wait_procs([psutil.Process(child)] if psutil.pid_exists(child) else [], timeout=WAIT_S)
            device.begin_life()
        refusal = device.hear(Refusal, Update)
        assert "begun 2 times, never came to an end: the agent itself ended each time" in refusal.detail
        device.say(Ack("endless"))
        device.does_an_honest_task()
        device.give("endless-2", endless())
        wait_for_work(device.trainer)
        device.process.terminate()
        # The graph would run for years.
        assert device.process.wait(WAIT_S) == 0
    finally:
        device.end()


# Makes the agent the largest process of the device, which by its size alone would be ended first.
LARGE_AGENT = """
import sys

if "device" in sys.orig_argv:
    sys.kept = b"x" * 400_000_000
"""


@pytest.mark.parametrize("by", sorted(MAKERS))
def test_what_is_ended_when_memory_runs_out_is_the_training_process_and_not_the_agent(
    broker: Broker, tmp_path: Path, by: str
) -> None:
    (tmp_path / "sitecustomize.py").write_text(LARGE_AGENT)
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    with memory_limit(by) as limit:
        device = RealDevice(broker, tmp_path, before=f"{limit.before} export PYTHONPATH={shlex.quote(path)};")
        try:
            # What the training process takes once, it has taken.
            device.does_an_honest_task()
            agent = device.process.pid
            assert psutil.Process(agent).memory_info().rss > 1.2 * psutil.Process(device.trainer).memory_info().rss
            limit.leave(agent, 60_000_000)
            # 100 MB where 60 are left: within the limit on address space, which has some for what is never touched.
            device.give("large", hoarding(25_000_000))
            refusal = device.hear(Refusal, Update)
            assert "begun 2 times" in refusal.detail
            assert "SIGKILL, as when memory runs out" in refusal.detail
            device.say(Ack("large"))
            device.does_an_honest_task()
            assert device.process.poll() is None
        finally:
            device.end()
