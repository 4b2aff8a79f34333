"""FedConv on emulated boards that choose their ratios by their memory; the server dies twice and ends the same."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from fedwright.device_runtime.config import AgentConfig
from fedwright.device_runtime.emulate.device import agent_command
from fedwright.device_runtime.emulate.fleet import EmulatedFleet
from fedwright.device_runtime.emulate.profiles import DeviceProfile, ProfileValue, load_profile
from fedwright.protocol.link.broker import Broker
from fedwright.protocol.messages import Report
from fedwright.server_runtime.config import RunConfig
from fedwright.simulation import simulate as simulation
from fedwright.simulation.dealing import Dealt, deal
from helpers.resume import Links, execute, final_state, simulated_state
from helpers.simulation import local_data, make_config, public_file

NAMES = ("raspberry-pi-4", "jetson-nano", "jetson-tx2", "laptop")
# A step of so many samples is said to take 211, 287, 423 or 559 MB. The boards have an eighth of their memory: the
# Nano's agent 268 MB, the Pi's and the TX2's 537, so that no host has too little.
BATCH = 8192
SCALE = 8
# About what an agent and its training process take of the limit themselves, whatever the board.
OWN_BYTES = 80_000_000
WIDTHS = {"device-0": 0.75, "device-1": 0.25, "device-2": 0.75, "device-3": 1.0}
METHOD = {
    "name": "fedconv",
    "pretrain_epochs": 2,
    "compress_epochs": 2,
    "again_epochs": 1,
    "dilate_epochs": 1,
    "weigh_epochs": 1,
}


def board(name: str) -> DeviceProfile:
    """A board with a part of its memory."""
    profile = load_profile(name)
    return replace(profile, agent_bytes=ProfileValue(profile.memory_bytes // SCALE, "derived", "this test"))


BOARDS = tuple(board(name) for name in NAMES)


@contextmanager
def boards(folder: Path, broker: str, config: RunConfig) -> Iterator[EmulatedFleet]:
    """Real agents in processes with the memory and the speed of their boards."""
    data = local_data(deal(config.simulate, seed=config.run.seed))
    with EmulatedFleet(folder / "logs") as fleet:
        for (device, own), profile in zip(data.items(), BOARDS, strict=True):
            path = folder / f"{device}.npz"
            np.savez(path, x=own.x, y=own.y, x_holdout=own.x_holdout, y_holdout=own.y_holdout, classes=own.classes)
            agent = AgentConfig(
                broker=broker,
                device=device,
                fleet="test",
                data=f"npz:{path}",
                state=folder / "state",
                threads=1,
                once=True,
            )
            limited = ProfileValue(profile.memory_bytes + OWN_BYTES, "derived", "this test")
            fleet.start(device, replace(profile, agent_bytes=limited), agent_command(agent))
        yield fleet


@pytest.mark.broker
@pytest.mark.slow
def test_boards_choose_their_ratios_and_a_killed_server_ends_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, text = make_config(
        tmp_path / "mqtt",
        method=METHOD,
        public=public_file(tmp_path),
        train={"batch": BATCH, "learning_rate": 0.05},
        fleet={"devices": 4, "join_timeout_s": 120, "deadline_s": 120},
        simulate={"devices": 4, "rows": 200, "evaluate_every": 0},
    )
    with Broker() as broker, boards(tmp_path, broker.url, config):
        outcome = execute(config, text, Links(broker.url), kills=(2, 4))
    assert {device: record.width for device, record in outcome.devices.items()} == WIDTHS

    make = simulation.make_reports

    def with_memory(run: RunConfig, dealt: Dealt) -> dict[str, Report]:
        memory = {d: profile.memory_bytes for d, profile in zip(dealt.shares, BOARDS, strict=True)}
        return {d: structs.replace(report, free_bytes=memory[d]) for d, report in make(run, dealt).items()}

    monkeypatch.setattr(simulation, "make_reports", with_memory)
    assert final_state(tmp_path / "mqtt") == simulated_state(config, text, tmp_path / "simulated")
