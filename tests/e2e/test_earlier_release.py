"""An earlier release and this one in one run over a real broker: whichever is the server, every round is whole."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from fedwright.protocol.link.broker import Broker
from helpers.data_files import save_points
from helpers.earlier_release import command_of, earlier_tree
from helpers.tools import shared_in_run

pytestmark = [pytest.mark.broker, pytest.mark.slow]

# Devices send changes and class means; keys that both releases know.
CONFIG = """
[run]
name = "both"
rounds = 2
[fleet]
devices = 2
join_timeout_s = 240
deadline_s = 240
quorum_ratio = 1.0
[model]
model = "mlp"
[update]
codec = "{codec}"
model_codec = "bf16"
[method]
name = "fedgh"
"""
ENDS_WITHIN_S = 280


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source tree of the earlier release."""
    return shared_in_run("earlier-release", tmp_path_factory, earlier_tree)


@contextmanager
def started(tree: Path | None, folder: Path, log: str, *words: str) -> Iterator["subprocess.Popen[bytes]"]:
    """`fedwright` of a source tree in a process of its own, which ends with the block."""
    command, environment = command_of(tree)
    with (folder / log).open("wb") as written:
        process = subprocess.Popen([*command, *words], cwd=folder, env=environment, stdout=written, stderr=written)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def agent(
    tree: Path | None, folder: Path, device: str, broker: str
) -> AbstractContextManager["subprocess.Popen[bytes]"]:
    save_points(folder / f"{device}.npz", seed=len(device))
    where = ("--broker", broker, "--data", f"npz:{device}.npz", "--state", f"state-{device}")
    return started(tree, folder, f"{device}.log", "device", "run", *where, "--device", device, "--once")


@pytest.mark.parametrize("server_is_earlier", [False, True], ids=["earlier agents", "earlier server"])
def test_every_round_is_whole(tmp_path: Path, earlier: Path, server_is_earlier: bool) -> None:
    server_tree, agent_tree = (earlier, None) if server_is_earlier else (None, earlier)
    # A codec that earlier agents do not know: the server asks them for another.
    (tmp_path / "run.toml").write_text(CONFIG.format(codec="int8" if server_is_earlier else "int4"))
    words = ("server", "run", "run.toml", "--json", "result.json", "--broker")
    with (
        Broker() as broker,
        agent(agent_tree, tmp_path, "pi-1", broker.url) as first,
        agent(agent_tree, tmp_path, "pi-22", broker.url) as second,
        started(server_tree, tmp_path, "server.log", *words, broker.url) as server,
    ):
        ended = [process.wait(ENDS_WITHIN_S) for process in (server, first, second)]
    logs = "\n".join((tmp_path / f"{name}.log").read_text() for name in ("server", "pi-1", "pi-22"))

    assert ended == [0, 0, 0], logs
    assert ("so that int8 is asked of pi-1" in logs) != server_is_earlier
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["rounds_done"], result["complete"]) == (2, True), logs
    assert [device["id"] for device in result["devices"] if device["accuracy_after"] is not None] == ["pi-1", "pi-22"]
    assert logs.count(", 2 updates") == 2, logs
    assert "Traceback" not in logs
