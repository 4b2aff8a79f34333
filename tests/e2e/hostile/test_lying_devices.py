"""Devices that lie, stall and shout, over a real broker and against the process of a server: the run ends well."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from msgspec import structs

from fedwright.protocol import codec, topics
from fedwright.protocol.link import connect
from fedwright.protocol.link.broker import Broker
from fedwright.protocol.messages import Board, Report
from helpers.data_files import save_points
from helpers.liar import USUAL, Liar, SlowLiar, taken
from helpers.links import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.slow]

HONEST = ("a", "b", "c")
ROUNDS = 2
RUN_S = 240.0
MB = 1_000_000
CONFIG = """
[run]
name = "night"
rounds = {rounds}
[fleet]
broker = "{broker}"
devices = {devices}
join_timeout_s = 120
deadline_s = 120
[model]
model = "mlp"
[method]
name = "{method}"
[train]
epochs = 8
"""


class Night:
    """`fedwright server run` in a process of its own with three honest agents in theirs."""

    def __init__(self, url: str, folder: Path, *, method: str, devices: int) -> None:
        self.folder = folder
        (folder / "run.toml").write_text(CONFIG.format(broker=url, rounds=ROUNDS, method=method, devices=devices))
        self.server = self._start("server", "server", "run", "run.toml", "--json", "result.json")
        self.agents = []
        for seed, device in enumerate(HONEST):
            save_points(folder / f"{device}.npz", seed=seed)
            words = ["--broker", url, "--device", device, "--data", f"npz:{device}.npz", "--state", "state"]
            self.agents.append(self._start(device, "device", "run", *words, "--threads", "1", "--once"))

    @property
    def run_folder(self) -> Path:
        return self.folder / "runs" / "night"

    def result(self) -> dict[str, Any]:
        """What came of the run once it has ended well."""
        code = self.server.wait(RUN_S)
        assert code == 0, (self.folder / "server.log").read_text()
        result: dict[str, Any] = json.loads((self.folder / "result.json").read_text())
        assert (result["rounds_done"], result["complete"]) == (ROUNDS, True)
        return result

    def end(self) -> None:
        """End all processes whatever they do."""
        for process in (self.server, *self.agents):
            process.kill()
            process.wait()

    def _start(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "fedwright", *words], cwd=self.folder, stdout=log, stderr=log
            )


@contextmanager
def night(folder: Path, *, method: str, devices: int) -> Iterator[tuple[Night, Broker]]:
    with Broker() as broker:
        started = Night(broker.url, folder, method=method, devices=devices)
        try:
            yield started, broker
        finally:
            started.end()


def notices_of(result: dict[str, Any]) -> dict[str, str]:
    return {notice["device"]: notice["text"] for notice in result["notices"] if notice["device"]}


def shout(url: str) -> None:
    """Sixty strangers with reports of a megabyte, and one that reports three thousand times."""
    board = Board("x", "x86_64", 1, 10**9, "onnxruntime", 1)
    odd = structs.replace(USUAL, input_shape=[5])
    large = structs.replace(odd, score_counts=[1] * 900_000)
    with closing(connect(url, client_id="crowd")) as link:
        for number in range(60):
            who = f"stranger-{number}"
            link.send(topics.up("default", who), codec.encode(Report("x", board, 1, large), sender=who, boot="b"))
        for number in range(3000):
            said = codec.encode(Report("x", board, 1, odd), sender="loud", boot=f"b{number}")
            link.send(topics.up("default", "loud"), said)
        link.send(topics.up("default", "loud"), b"\xc1 no message", reliable=True)


def test_lies_in_updates_and_reports_stalling_and_shouting_do_not_end_a_run(tmp_path: Path) -> None:
    with night(tmp_path, method="fedavg", devices=9) as (run, broker), ExitStack() as stack:
        liars = {
            "none": Liar(broker.url, "none", samples=0),
            "huge": Liar(broker.url, "huge", value=np.float32(3e38)),
            "wide": Liar(broker.url, "wide", value=np.float64(1e300)),
            "heavy": Liar(broker.url, "heavy", said=structs.replace(USUAL, samples=2**53), samples=2**53),
            "many": Liar(broker.url, "many", said=structs.replace(USUAL, classes=1_000_000)),
            "empty": Liar(broker.url, "empty", said=structs.replace(USUAL, samples=0)),
            "slow": SlowLiar(broker.url, "slow"),
        }
        for liar in liars.values():
            stack.callback(liar.stop)
        slow = liars["slow"]
        assert isinstance(slow, SlowLiar)
        wait_until(slow.began.is_set, timeout_s=RUN_S)
        process = psutil.Process(run.server.pid)
        before_bytes = process.memory_info().rss
        shout(broker.url)
        # Nine blobs that hardly come keep nobody else's waiting.
        wait_until(lambda: set(HONEST) <= taken(run.run_folder, 1) and bool(slow.asked), timeout_s=RUN_S)
        grown_bytes = process.memory_info().rss - before_bytes
        slow.give_way()
        result = run.result()

    assert grown_bytes < 200 * MB
    assert [metrics["updates"] for metrics in result["metrics"]] == [4.0, 4.0]
    # What 2^53 samples say counts no more than the fleet bears out: the honest ones still learn.
    assert result["metrics"][-1]["accuracy_after"] > 0.8
    told = notices_of(result)
    assert "stats.samples is 0" in told["none"]
    assert "reaches 3e+38" in told["huge"]
    assert "has type float64 but float32 was asked for" in told["wide"]
    assert "the run has 2 classes" in told["many"]
    assert "it reports no samples, so it does not train" in told["empty"]
    assert any("stats.samples is 0" in problem for problem in liars["none"].problems)
    assert len(slow.asked) == 1


def test_a_report_of_no_samples_does_not_stop_hasa(tmp_path: Path) -> None:
    with night(tmp_path, method="hasa", devices=5) as (run, broker), ExitStack() as stack:
        for name, said in (("empty", structs.replace(USUAL, samples=0)), ("void", structs.replace(USUAL, holdout=0))):
            stack.callback(Liar(broker.url, name, said=said, samples=0).stop)
        result = run.result()

    assert [metrics["updates"] for metrics in result["metrics"]] == [3.0, 3.0]
    assert "it reports no samples" in notices_of(result)["empty"]
