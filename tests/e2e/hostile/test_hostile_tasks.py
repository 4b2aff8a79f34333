"""Tasks that no honest server sends, to a real agent over a real broker: it answers, refuses with a reason, goes on."""

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from fedwright.protocol import artifact as artifacts
from fedwright.protocol import codec, tensors, topics
from fedwright.protocol.blobs import make_ref
from fedwright.protocol.link import connect
from fedwright.protocol.link.broker import Broker
from fedwright.protocol.messages import Ack, Challenge, Recipe, Refusal, Report, Returns, Task, Update
from helpers.fleet import make_data
from helpers.hostile_graphs import dividing, endless, huge
from helpers.task_bench import wait_for_work
from helpers.tiny_artifact import make_artifact, start_weights
from helpers.tools import missing, require_tool

pytestmark = [pytest.mark.broker, pytest.mark.slow]

WAIT_S = 120.0
FREE_BYTES = 1024**3
MEMORY_GROUPS = Path("/sys/fs/cgroup/memory")


class Device:
    """`fedwright device run` in a process of its own, and a server that says what the test wants."""

    def __init__(self, broker: Broker, folder: Path, *, before: str = "") -> None:
        data = make_data("a")
        np.savez(folder / "data.npz", x=data.x, y=data.y)
        words = ["device", "run", "--device", "a", "--broker", broker.url, "--data", f"npz:{folder / 'data.npz'}"]
        words += ["--state", str(folder / "state"), "--threads", "1"]
        command = shlex.join([sys.executable, "-m", "fedwright", *words])
        self._command = ["sh", "-c", f"{before} exec {command}"]
        self._log = folder / "device.log"
        self._link = connect(broker.url, client_id="server")
        self._link.subscribe(topics.up_all("default"))
        self._boot = ""
        self.begin_life()

    def begin_life(self) -> None:
        """Start the agent and hear its first report."""
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(self._command, stdout=log, stderr=log)
        known = self._boot
        while self._boot == known:
            self.hear(Report)

    def say(self, body: Any) -> None:
        self._link.send(topics.down("default", "a"), codec.encode(body, sender="server", boot="s"))

    def give(self, name: str, artifact: Any) -> None:
        """Send a task as the server of the run would."""
        recipe = Recipe(batch=4, learning_rate=0.1, seed=1)
        refs = make_ref(artifacts.pack(artifact)), make_ref(tensors.save(start_weights()))
        self.say(Task(name, self._boot, "run", 1, *refs, recipe, Returns(), 600.0))

    def hear(self, *kinds: Any) -> Any:
        """The next message of these kinds."""
        until_s = time.monotonic() + WAIT_S
        while time.monotonic() < until_s:
            received = self._link.receive(1.0)
            envelope = None if received is None else codec.decode(received.payload)
            if envelope is not None and isinstance(envelope.body, kinds):
                self._boot = envelope.boot if isinstance(envelope.body, Report) else self._boot
                return envelope.body
        raise AssertionError(f"no {kinds} came; {self._log.read_text()[-1000:]}")

    def answers(self) -> None:
        """See that the agent answers while it works."""
        self.say(Challenge())
        self.hear(Report)

    @property
    def trainer(self) -> int:
        """The process that trains."""
        (child,) = psutil.Process(self.process.pid).children()
        return int(child.pid)

    def does_an_honest_task(self) -> None:
        """What came before has done no harm."""
        name = codec.new_id()
        self.give(name, make_artifact())
        while (answer := self.hear(Update, Refusal)).task != name:
            pass
        assert isinstance(answer, Update), answer
        self.say(Ack(name))

    def end(self) -> None:
        """End the agent whatever it does."""
        self.process.kill()
        self.process.wait()
        self._link.close()


@pytest.fixture
def broker() -> Iterator[Broker]:
    require_tool("mosquitto")
    with Broker(kind="mosquitto") as started:
        yield started


def test_graphs_that_take_all_memory_or_end_their_process_are_refused_and_the_device_goes_on(
    broker: Broker, tmp_path: Path
) -> None:
    device = Device(broker, tmp_path, before=f"ulimit -d {FREE_BYTES // 1024};")
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
    device = Device(broker, tmp_path)
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


def test_when_the_kernel_ends_what_takes_too_much_it_is_the_training_process_and_not_the_agent(
    broker: Broker, tmp_path: Path
) -> None:
    group = _memory_group()
    device = Device(broker, tmp_path, before=f"echo $$ > {group / 'cgroup.procs'};")
    try:
        # What the training process takes once, it has taken.
        device.does_an_honest_task()
        used = int((group / "memory.usage_in_bytes").read_text())
        (group / "memory.limit_in_bytes").write_text(str(used + 60_000_000))
        # 100 MB where 60 are left: within the limit on address space, which has some for what is never touched.
        device.give("large", huge(25_000_000))
        refusal = device.hear(Refusal, Update)
        assert "begun 2 times" in refusal.detail
        assert "SIGKILL, as when memory runs out" in refusal.detail
        device.say(Ack("large"))
        device.does_an_honest_task()
    finally:
        device.end()
        _remove(group)


def _memory_group() -> Path:
    """A memory cgroup of our own."""
    own = [line.split(":")[2] for line in Path("/proc/self/cgroup").read_text().splitlines() if ":memory:" in line]
    parent = MEMORY_GROUPS / own[0].lstrip("/") if own else MEMORY_GROUPS
    if not own or not os.access(parent, os.W_OK):
        pytest.skip("there is no memory cgroup (version 1) that may be written here")
    group = parent / f"fedwright-{os.getpid()}"
    group.mkdir()
    return group


def _remove(group: Path) -> None:
    until_s = time.monotonic() + WAIT_S
    while time.monotonic() < until_s:
        try:
            group.rmdir()
        except OSError:
            os.sched_yield()
        else:
            return
    missing(f"{group} cannot be removed")
