"""Two edges between a host and emulated boards over mosquitto, all in processes of their own, some of them killed."""

import signal
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from fedwright.device_runtime import facts
from fedwright.device_runtime.config import AgentConfig
from fedwright.device_runtime.emulate.device import agent_command
from fedwright.device_runtime.emulate.fleet import EmulatedFleet
from fedwright.device_runtime.emulate.profiles import load_profile
from fedwright.device_runtime.profiler.store import PROFILE_NAME, save_profile
from fedwright.protocol import tensors
from fedwright.protocol.blobs import BlobStore
from fedwright.protocol.link.broker import Broker
from fedwright.protocol.messages import Shown
from fedwright.protocol.operator_costs import FEATURES
from fedwright.protocol.predictor import Profile
from fedwright.server_runtime.edge.cluster_sharing import OTHERS
from fedwright.server_runtime.edge.store import EdgeStore
from fedwright.server_runtime.rounds.store.base import Position
from fedwright.server_runtime.rounds.store.sqlite import SqliteRoundStore
from fedwright.server_runtime.zoo import width_of
from fedwright.simulation.dealing import deal
from fedwright.simulation.edged_fleet import in_turn
from fedwright.simulation.simulate import simulate
from helpers.present import present
from helpers.simulation import local_data, make_config
from helpers.tools import require_tool

BOARDS = ("raspberry-pi-4", "jetson-nano", "jetson-tx2", "laptop")
EDGES = ("edge-1", "edge-2")
ROUNDS = 4
SECONDS_PER_FLOP = 1e-9
POLL_S = 0.05
RUN_TIMEOUT_S = 120.0
# Longer than an edge needs to start again on a busy machine.
PATIENCE_S = 8.0
SIMULATE = {"devices": len(BOARDS), "evaluate_every": 0, "edges": len(EDGES), "partition": "iid"}
EDGE = """
[edge]
name = "{name}"
folder = "{folder}"
[host]
broker = "{broker}"
fleet = "test"
"""


class Site:
    """A host, two edges and four boards; a process that was killed can be started again."""

    def __init__(self, folder: Path, stack: ExitStack, *, rounds: int, edge: str = "", **sections: Any) -> None:
        self.folder = folder
        self._stack = stack
        self.broker = stack.enter_context(Broker(kind="mosquitto"))
        fleet = {"devices": len(BOARDS), "broker": self.broker.url, "deadline_s": 60}
        self.config, text = make_config(folder, rounds=rounds, fleet=fleet, simulate=SIMULATE, **sections)
        (folder / "run.toml").write_text(text)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        for name in EDGES:
            whole = EDGE.format(name=name, folder=folder / "edges", broker=self.broker.url) + edge
            (folder / f"{name}.toml").write_text(whole)
            self.start(name)
        self.start("host")
        self._start_boards(stack.enter_context(EmulatedFleet(folder / "logs")))

    def _start_boards(self, fleet: EmulatedFleet) -> None:
        data = local_data(deal(self.config.simulate, seed=self.config.run.seed))
        homes = in_turn(list(data), len(EDGES))
        for (device, own), board in zip(data.items(), BOARDS, strict=True):
            path = self.folder / f"{device}.npz"
            np.savez(path, x=own.x, y=own.y, x_holdout=own.x_holdout, y_holdout=own.y_holdout, classes=own.classes)
            home, state = homes[device], self.folder / "state" / device
            save_profile(state / PROFILE_NAME, speed_of(board))
            config = AgentConfig(
                broker=self.broker.url,
                device=device,
                data=f"npz:{path}",
                fleet=home,
                further=tuple(edge for edge in EDGES if edge != home),
                patience_s=PATIENCE_S,
                state=state,
                threads=1,
                profile=board,
            )
            fleet.start(device, board, agent_command(config))

    def start(self, name: str) -> None:
        """Start the host or an edge; a host that has begun goes on."""
        words = ["server", "edge", str(self.folder / f"{name}.toml")]
        if name == "host":
            begun = self.closed()
            words = [
                "server",
                *(["resume", str(self.folder / "run")] if begun else ["run", str(self.folder / "run.toml")]),
            ]
        with (self.folder / f"{name}.out").open("ab") as log:
            process = subprocess.Popen([sys.executable, "-m", "fedwright", *words], stdout=log, stderr=log)
        self._stack.callback(_end, process)
        self._processes[name] = process

    def kill(self, name: str) -> None:
        """SIGKILL."""
        self._processes[name].send_signal(signal.SIGKILL)
        self._processes[name].wait()

    def wait_for(self, rounds: int) -> None:
        """Wait until so many rounds are closed."""
        for _ in range(int(RUN_TIMEOUT_S / POLL_S)):
            if len(self.closed()) >= rounds:
                return
            self.ended("host", POLL_S)
        raise AssertionError(f"round {rounds} did not close: " + (self.folder / "host.out").read_text()[-2000:])

    def ended(self, name: str, timeout_s: float) -> int | None:
        """The exit code of a process; None when it still runs after so long."""
        try:
            return self._processes[name].wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def closed(self) -> list[Any]:
        """The rounds that are over."""
        path = self.folder / "run/rounds.sqlite"
        if not path.exists():
            return []
        store = SqliteRoundStore(path)
        try:
            return store.closed()
        finally:
            store.close()


def kill_one_after_another(site: Site) -> None:
    """An edge and the host, which come back, and an edge that does not; the run goes on to its end."""
    site.wait_for(1)
    site.kill("edge-1")
    site.start("edge-1")
    site.wait_for(2)
    site.kill("host")
    site.start("host")
    site.wait_for(3)
    site.kill("edge-2")
    assert site.ended("host", RUN_TIMEOUT_S) == 0, (site.folder / "host.out").read_text()[-2000:]


def speed_of(board: str) -> Profile:
    """What a board would have measured: so many operations per second, as its profile says beside a laptop."""
    own = facts.board(threads=1)
    seconds = SECONDS_PER_FLOP / load_profile(board).cpu_share
    coefficients = [seconds if feature == "flops" else 0.0 for feature in FEATURES]
    return Profile(own.model, own.runtime, 1, facts.health().power_mode or "", {"any": coefficients})


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def state_of(folder: Path) -> dict[str, np.ndarray]:
    """The last saved state of a run."""
    store = SqliteRoundStore(folder / "rounds.sqlite")
    try:
        return tensors.load(BlobStore(folder / "blobs").path(store.closed()[-1].state))
    finally:
        store.close()


@pytest.mark.broker
@pytest.mark.slow
def test_killed_edges_and_a_killed_host_lose_nothing(tmp_path: Path) -> None:
    require_tool("mosquitto")
    simulate(*make_config(tmp_path / "simulated", rounds=ROUNDS, simulate=SIMULATE))
    with ExitStack() as stack:
        site = Site(tmp_path, stack, rounds=ROUNDS)
        kill_one_after_another(site)

    closed = site.closed()
    assert [stage.position.round for stage in closed] == [1, 2, 3, 4]
    assert [stage.metrics["updates"] for stage in closed] == [4, 4, 4, 4]
    counted = Counter(task for stage in closed for task in stage.absorbed)
    assert set(counted.values()) == {1}
    assert len(counted) == 4 * ROUNDS
    logs = "".join(path.read_text() for path in (tmp_path / "logs").iterdir())
    assert logs.count("edge edge-2 says nothing; going elsewhere") == 2
    # As long as every device has its edge, killed or not, the bytes are those of a run left in peace.
    store = SqliteRoundStore(tmp_path / "simulated/run/rounds.sqlite")
    peace = store.closed()
    store.close()
    assert [stage.state for stage in closed[:3]] == [stage.state for stage in peace[:3]]
    expected = state_of(tmp_path / "simulated/run")
    for name, value in state_of(tmp_path / "run").items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.broker
@pytest.mark.slow
def test_edges_that_show_each_other_their_clusters_may_be_killed(tmp_path: Path) -> None:
    require_tool("mosquitto")
    ratios = {"sizes": [1.0, 0.5], "choose": "in_turn"}
    with ExitStack() as stack:
        site = Site(
            tmp_path,
            stack,
            rounds=4,
            edge='[exchange]\nform = "folded"\n',
            method={"name": "heterofl", "masked": False, "levels": ratios},
            update={"class_means": True},
        )
        kill_one_after_another(site)

    closed = site.closed()
    assert [stage.metrics["updates"] for stage in closed] == [4, 4, 4, 4]
    assert set(Counter(task for stage in closed for task in stage.absorbed).values()) == {1}
    store = EdgeStore(tmp_path / "edges/edge-1/edge.sqlite")
    seen = msgspec.msgpack.decode(present(store.note(OTHERS)), type=dict[str, Shown])
    store.close()
    assert seen.keys() == {"edge-2"}


@pytest.mark.broker
@pytest.mark.slow
def test_boards_choose_their_shrinkage_ratios_behind_two_edges(tmp_path: Path) -> None:
    require_tool("mosquitto")
    rng = np.random.default_rng(4)
    np.savez(tmp_path / "public.npz", x=rng.random((40, 1, 8, 8), np.float32), y=np.arange(40) % 10)
    epochs = dict.fromkeys(("pretrain_epochs", "compress_epochs", "again_epochs", "dilate_epochs", "weigh_epochs"), 1)
    with ExitStack() as stack:
        site = Site(
            tmp_path,
            stack,
            rounds=2,
            method={"name": "fedconv", **epochs},
            public={"file": str(tmp_path / "public.npz")},
            # What a laptop needs for the whole model, and a little more.
            budget={"round_s": 0.22},
        )
        assert site.ended("host", RUN_TIMEOUT_S) == 0, (tmp_path / "host.out").read_text()[-2000:]

    store = SqliteRoundStore(tmp_path / "run/rounds.sqlite")
    plan, replies = store.plan(Position(1, 0)), store.replies(Position(1, 0))
    store.close()
    ratios = [width_of(planned.assignment.structure.spec) for planned in present(plan)]
    assert dict(zip(BOARDS, ratios, strict=True)) == {
        "raspberry-pi-4": 0.5,
        "jetson-nano": 0.5,
        "jetson-tx2": 0.75,
        "laptop": 1.0,
    }
    assert {present(planned.task.pool).edge for planned in present(plan)} == set(EDGES)
    assert all(reply.outcome == "update" for reply in replies.values())
