"""Server and devices inside one program, over a real broker."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedwright as fw
from fedwright.protocol.errors import DataError, LinkError
from fedwright.protocol.link.broker import Broker
from fedwright.server_runtime.rounds.events import Event, RoundClosed

pytestmark = pytest.mark.broker


def examples(seed: int) -> fw.Dataset:
    rng = np.random.default_rng(seed)
    y = np.arange(60) % 3
    return fw.Dataset((rng.normal(size=(60, 4)) + 3 * np.eye(4)[y]).astype(np.float32), y)


def settings(broker: Broker, folder: Path) -> dict[str, dict[str, Any]]:
    return {
        "method": {"name": "fedavg"},
        "model": {"model": "mlp"},
        "run": {"name": "night", "folder": str(folder / "runs"), "rounds": 3},
        "fleet": {"broker": broker.url, "devices": 2, "join_timeout_s": 60.0, "deadline_s": 60.0},
    }


def device(broker: Broker, folder: Path, name: str) -> fw.Device:
    return fw.Device(broker.url, examples(len(name)), device=name, state=folder / "state", nice=0)


def test_a_program_holds_server_and_devices_and_may_stop_in_between(tmp_path: Path) -> None:
    seen: list[int] = []

    def note(event: Event) -> None:
        if isinstance(event, RoundClosed):
            seen.append(event.round)
            first.stop()

    with Broker() as broker, device(broker, tmp_path, "a"), device(broker, tmp_path, "bb"):
        first = fw.Server(settings(broker, tmp_path), on_event=note)
        with first:
            half = first.wait()
        again = fw.Server(settings(broker, tmp_path))
        with again:
            run = again.wait()

    assert seen == [1]
    assert len(half.rounds) == 1
    assert len(run.rounds) == 3
    assert [row["id"] for row in run.devices] == ["a", "bb"]
    assert run.accuracy > 0.5


def test_what_is_wrong_is_raised_where_it_begins(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        fw.Device("mqtt://localhost:1", "nothing.npz", device="a", state=tmp_path).__enter__()
    with pytest.raises(LinkError, match="no broker at"):
        fw.Device("mqtt://localhost:1", examples(1), device="a", state=tmp_path).__enter__()
