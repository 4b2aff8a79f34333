"""`fedwright.simulate` in a program and in a notebook's kernel: what is shown, and what Ctrl-C leaves."""

import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

from fedwright.cli.main import main

# Long enough that it is stopped in the middle.
PROGRAM = """
import numpy as np
import fedwright as fw
from torch import nn

class Small(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.head = nn.Linear(4, classes)

    def forward(self, x):
        return self.head(x)

y = np.arange(90) % 3

def study(rounds):
    return fw.simulate(model=Small, data=(np.eye(4, dtype="float32")[y], y), devices=3, rounds=rounds, keep="kept",
                       settings={"simulate": {"processes": 2}})
"""
LONG = "study(rounds=1_000_000)"
# Tests that run in the background of a shell, or under nohup, inherit that Ctrl-C is ignored.
HEEDED = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
WAIT_S = 240
STOPPED = "simulate was stopped; the same call goes on from kept"


def workers_of(pid: int) -> list[psutil.Process]:
    """The processes that do devices' work; Python's own bookkeeper beside them stays as long as a kernel."""
    return [child for child in psutil.Process(pid).children() if "spawn_main" in " ".join(child.cmdline())]


def rounds_done(folder: Path, capsys: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch) -> str:
    """What `server status` says of the run that was stopped."""
    patch.chdir(folder)
    capsys.readouterr()
    assert main(["server", "status", "kept"]) == 0
    return capsys.readouterr().out


@pytest.mark.timeout(2 * WAIT_S)
def test_ctrl_c_ends_a_program_and_all_it_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "program.py").write_text(HEEDED + PROGRAM + LONG)
    program = subprocess.Popen(
        [sys.executable, "program.py"], cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert program.stderr is not None
        shown = [next(line for line in program.stderr if line.startswith("round 2/1000000 took "))]
        started = workers_of(program.pid)
        # As a terminal does: all processes of the program get it.
        os.killpg(program.pid, signal.SIGINT)
        shown += program.communicate(timeout=WAIT_S)[1].splitlines()
    finally:
        program.kill()
        program.wait()

    assert program.returncode == -signal.SIGINT
    assert len(started) >= 2
    assert psutil.wait_procs(started, timeout=WAIT_S)[1] == []
    # One traceback, of the program's own line, which ends in what to do.
    assert [line for line in shown if line.startswith("Traceback")] == ["Traceback (most recent call last):"]
    assert shown[-1] == f"KeyboardInterrupt: {STOPPED}"
    frames = [line for line in shown if line.startswith("  File ") and "program.py" not in line]
    assert len(frames) <= 3
    assert "of 1000000 rounds" in rounds_done(tmp_path, capsys, monkeypatch)


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[KernelManager, BlockingKernelClient]]:
    """A kernel as a notebook has it, in an empty folder."""
    with tempfile.TemporaryDirectory(prefix="fw-") as sockets:
        # Sockets in a folder: ports that are free now may not be when the kernel starts.
        manager = KernelManager(transport="ipc", connection_file=f"{sockets}/k.json", ip=f"{sockets}/k")
        manager.start_kernel(cwd=str(tmp_path_factory.mktemp("notebook")))
        client = manager.blocking_client()
        client.start_channels()
        client.wait_for_ready(timeout=WAIT_S)
        yield manager, client
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def run_cell(
    client: BlockingKernelClient, code: str, watch: Callable[[str], None] = lambda text: None
) -> list[dict[str, Any]]:
    """All messages of a cell until it is done; watch: sees each piece of text as it comes."""
    asked = client.execute(code)
    found: list[dict[str, Any]] = []
    while True:
        try:
            message = client.get_iopub_msg(timeout=WAIT_S)
        except queue.Empty:
            raise AssertionError(f"the cell was not done after {WAIT_S} s: {found[-3:]}") from None
        if message["parent_header"].get("msg_id") != asked:
            continue
        found.append(message)
        content = message["content"]
        if message["msg_type"] == "stream":
            watch(content["text"])
        if message["msg_type"] == "status" and content["execution_state"] == "idle":
            return found


def texts_of(messages: list[dict[str, Any]]) -> str:
    return "".join(message["content"]["text"] for message in messages if message["msg_type"] == "stream")


@pytest.mark.timeout(4 * WAIT_S)
def test_a_kernel_shows_the_table_stops_and_goes_on(kernel: tuple[KernelManager, BlockingKernelClient]) -> None:
    manager, client = kernel
    pid = int(texts_of(run_cell(client, PROGRAM + "import os; print(os.getpid())")))
    started: list[psutil.Process] = []

    def stop(text: str) -> None:
        if "round 2/1000000 took " in text:
            started.extend(workers_of(pid))
            manager.interrupt_kernel()

    stopped = run_cell(client, LONG, stop)
    ended = psutil.wait_procs(started, timeout=WAIT_S)
    done = int(re.findall(r"round (\d+)/", texts_of(stopped))[-1])
    again = run_cell(client, f"print(len(study(rounds={done + 5}).rounds), 'rounds in all')")

    assert len(started) >= 2
    assert ended[1] == []
    [error] = [message["content"] for message in stopped if message["msg_type"] == "error"]
    assert (error["ename"], error["evalue"]) == ("KeyboardInterrupt", STOPPED)
    drawn = [m["content"]["data"]["text/html"] for m in stopped if m["msg_type"].endswith("display_data")]
    assert "waiting for 3 devices" in drawn[0]
    assert drawn[-1] == ""
    # It goes on behind what was done, and ends.
    assert f"round {done + 5}/{done + 5} took " in texts_of(again)
    assert "round 1/" not in texts_of(again)
    assert f"{done + 5} rounds in all" in texts_of(again)
    assert not [message for message in again if message["msg_type"] == "error"]
