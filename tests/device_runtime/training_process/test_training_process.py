"""The process that trains beside the agent: the same numbers, kept between tasks, replaced when a task ends it."""

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from msgspec import structs

from fedwright.device_runtime.emulate.meter import process_cpu_s
from fedwright.device_runtime.equipment import make_equipment
from fedwright.device_runtime.in_process import InProcessRunner
from fedwright.device_runtime.runner import Crashed, Done
from fedwright.device_runtime.task_inputs import Stopped
from fedwright.device_runtime.training_process import parent
from fedwright.device_runtime.training_process.parent import TrainingProcess
from fedwright.protocol.errors import DataError
from fedwright.protocol.messages import Refusal
from helpers.hostile_graphs import dividing, endless, huge
from helpers.present import present
from helpers.task_bench import Bench, wait_for_work

# The round of a kept process may cost this much more than its task does.
ROUND_CPU_S = 0.15
MEASURED = {"train_s": 0.0, "train_cpu_s": 0.0, "cpu_s": 0.0, "task_s": 0.0, "peak_rss_bytes": 0, "energy_j": None}


def never() -> Any:
    return False


@pytest.fixture
def bench(tmp_path: Path) -> Any:
    return Bench(tmp_path)


@pytest.fixture
def process(bench: Any) -> Any:
    started = TrainingProcess(bench.settings())
    yield started
    started.close()


def content(done: Any) -> Any:
    """What a task came to, without what was measured on the way."""
    with open(done.blob, "rb") as file:
        return file.read(), structs.replace(done.stats, **MEASURED)


@pytest.mark.parametrize("returns", [{}, {"codec": "int8"}, {"personal": ["b"]}], ids=["plain", "int8", "personal"])
def test_the_same_bytes_as_in_the_process_of_the_agent(bench: Any, process: Any, returns: Any) -> None:
    here = InProcessRunner(make_equipment(bench.settings("here")))
    for name in ("t1", "t2"):
        found = [
            content(runner.run(*bench.task(name=name, **returns), should_stop=never)) for runner in (here, process)
        ]
        assert found[0] == found[1]


def test_what_is_told_of_the_data_is_the_truth(bench: Any, process: Any) -> None:
    assert process.ready.summary == make_equipment(bench.settings("here")).data.summary()
    assert process.ready.told is None


def test_data_that_cannot_be_read_is_said_as_ever(bench: Any) -> None:
    with pytest.raises(DataError, match=r"nowhere\.npz"):
        TrainingProcess(bench.settings(data="npz:nowhere.npz"))


def test_a_task_that_ends_the_process_is_told_and_the_next_one_works(bench: Any, process: Any) -> None:
    with pytest.raises(Crashed, match="SIGFPE"):
        process.run(*bench.task(dividing()), should_stop=never)

    assert isinstance(process.run(*bench.task(), should_stop=never), Done)


def test_a_process_that_has_nothing_to_do_is_ended_and_the_next_task_starts_one(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parent, "REST_RATIO", 0.0)
    here = InProcessRunner(make_equipment(bench.settings("here")))
    wanted = content(here.run(*bench.task(), should_stop=never))
    process = TrainingProcess(bench.settings(), rest_s=0.05)
    before = psutil.Process(process.pid)
    before.wait(20)

    assert content(process.run(*bench.task(), should_stop=never)) == wanted
    process.close()


def test_a_process_that_starts_slowly_stays_longer(bench: Any) -> None:
    process = TrainingProcess(bench.settings(), rest_s=0.05)
    timer = process._resting

    assert timer is not None
    # No process is there in five milliseconds.
    assert timer.interval > 0.1
    process.close()


def test_memory_beyond_what_is_free_is_refused_and_the_process_lives_on(bench: Any, process: Any) -> None:
    pid = process.pid
    refusal = process.run(*bench.task(huge(2**36)), should_stop=never)

    assert isinstance(refusal, Refusal)
    assert refusal.reason == "over_budget"
    assert isinstance(process.run(*bench.task(), should_stop=never), Done)
    assert process.pid == pid


def test_an_endless_graph_stops_when_told_and_its_process_is_kept(bench: Any, process: Any) -> None:
    pid, stop = process.pid, threading.Event()
    timer = threading.Timer(1.0, stop.set)
    timer.start()
    with pytest.raises(Stopped):
        process.run(*bench.task(endless()), should_stop=stop.is_set)
    timer.join()

    assert isinstance(process.run(*bench.task(), should_stop=never), Done)
    assert process.pid == pid


def test_closing_ends_an_endless_graph_at_once(bench: Any, process: Any) -> None:
    ended = []

    def work() -> None:
        try:
            process.run(*bench.task(endless()), should_stop=never)
        except Stopped as stopped:
            ended.append(stopped)

    thread = threading.Thread(target=work)
    thread.start()
    wait_for_work(process.pid)
    began_s = time.monotonic()
    process.close()
    thread.join(10)

    assert len(ended) == 1
    assert time.monotonic() - began_s < 1.0
    assert process.pid is None


def test_a_round_in_a_kept_process_costs_hardly_more_than_its_task(bench: Any, process: Any) -> None:
    process.run(*bench.task(name="t1"), should_stop=never)
    before_s = present(process_cpu_s(process.pid)) + time.process_time()
    done = process.run(*bench.task(name="t2"), should_stop=never)
    round_s = present(process_cpu_s(process.pid)) + time.process_time() - before_s

    assert round_s - done.stats.train_cpu_s < ROUND_CPU_S
    assert 0 < done.stats.cpu_s < round_s + 0.01


def test_memory_and_processor_time_of_the_process_are_reported(bench: Any, process: Any) -> None:
    done = process.run(*bench.task(), should_stop=never)

    assert done.stats.peak_rss_bytes >= 0.9 * psutil.Process(process.pid).memory_info().rss
    assert done.stats.cpu_s >= done.stats.train_cpu_s
    assert done.stats.cpu_s > 0


AGENT = """
import sys, msgspec
from fedwright.device_runtime.equipment_settings import EquipmentSettings
from fedwright.device_runtime.training_process.parent import TrainingProcess
process = TrainingProcess(msgspec.json.decode(sys.argv[1], type=EquipmentSettings))
sys.stdout.write(f"{process.pid}\\n")
sys.stdout.flush()
sys.stdin.read()
"""


def test_the_process_dies_with_its_agent(bench: Any) -> None:
    settings = msgspec.json.encode(bench.settings()).decode()
    agent = subprocess.Popen(
        [sys.executable, "-c", AGENT, settings], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    process = psutil.Process(int(present(agent.stdout).readline()))
    agent.kill()
    agent.communicate()

    gone, _ = psutil.wait_procs([process], timeout=10)
    assert gone or process.status() == psutil.STATUS_ZOMBIE


LIMITED = """
import os, sys
from fedwright.device_runtime import facts
from fedwright.device_runtime.training_process import limits
limits.LEAST_CPU_S = 1.0
facts.cores = lambda: 1
held = limits.TaskLimits(os.getppid())
held.begin(0.5)
while True:
    pass
"""


def test_a_task_that_uses_up_its_processor_time_ends_the_process() -> None:
    ended = subprocess.run([sys.executable, "-c", LIMITED], timeout=60, check=False)

    assert ended.returncode == -signal.SIGXCPU
