"""An edge by itself: no host, two of one name, a folder in use, and configs that cannot be."""

import time
from pathlib import Path

import pytest

from fedwright.protocol.blobs import BlobStore
from fedwright.protocol.errors import ConfigError, IdentityTaken, LinkError
from fedwright.protocol.link.memory import MemoryBroker
from fedwright.server_runtime.edge.config import edge_from_dict, load_edge
from fedwright.server_runtime.rounds.planner import Planner
from fedwright.server_runtime.rounds.store.memory import MemoryRoundStore
from fedwright.server_runtime.rounds.task_tracker import TaskTracker
from fedwright.server_runtime.rounds.update_reader import UpdateReader
from fedwright.server_runtime.transport.device_channel import DeviceChannel
from helpers.edges import RunningEdge
from helpers.fleet import FLEET, WAIT_S, TinyBuilder


def test_an_edge_without_a_host_gives_up_with_a_sentence(tmp_path: Path) -> None:
    edge = RunningEdge(MemoryBroker(), "edge", tmp_path, host={"fleet": FLEET, "timeout_s": 0.2})
    edge.thread.join(WAIT_S)

    assert isinstance(edge.error, LinkError)
    assert str(edge.error).startswith("edge edge has heard no host for 0 s; start one with `fedwright server run`")
    edge.stop()


def test_two_edges_of_one_name(tmp_path: Path) -> None:
    broker = MemoryBroker()
    blobs = BlobStore(tmp_path / "blobs")
    link = broker.link("server")
    planner = Planner("run", TinyBuilder(), blobs, 10.0)
    tracker = TaskTracker(
        DeviceChannel(link, FLEET, blobs=blobs), planner, store=MemoryRoundStore(), reader=UpdateReader(planner)
    )
    first = RunningEdge(broker, "edge", tmp_path / "one")
    tracker.poll(time.monotonic() + WAIT_S)
    second = RunningEdge(broker, "edge", tmp_path / "two")
    deadline_s = time.monotonic() + WAIT_S
    while second.thread.is_alive() and time.monotonic() < deadline_s:
        tracker.poll(deadline_s)

    assert isinstance(second.error, IdentityTaken)
    assert "the host turned edge edge away: another live device already uses the id edge" in str(second.error)
    assert first.thread.is_alive()
    assert tracker.present() == {}
    first.stop()
    second.stop()
    link.close()


def test_two_edges_in_one_folder(tmp_path: Path) -> None:
    broker = MemoryBroker()
    first = RunningEdge(broker, "edge", tmp_path)
    second = RunningEdge(broker, "edge", tmp_path)
    second.thread.join(WAIT_S)

    assert isinstance(second.error, ConfigError)
    assert "another edge is at work in" in str(second.error)
    first.stop()
    second.stop()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({}, r"lacks the section \[edge\]; it needs at least a name"),
        ({"edge": {}}, "name"),
        ({"edge": {"name": "a/b"}}, "must be 1 to 64"),
        ({"edge": {"name": "e", "folder": ""}}, "folder is empty"),
        ({"edge": {"name": "e"}, "hots": {}}, "hots"),
        ({"edge": {"name": "e"}, "host": {"broker": "embedded"}}, "a broker that is running already"),
        ({"edge": {"name": "e"}, "devices": {"broker": "http://x"}}, "must look like mqtt"),
        ({"edge": {"name": "e"}, "host": {"broker": "mqtts://x:8883"}}, "mqtts broker but no edge.bundle"),
        ({"edge": {"name": "e"}, "cluster": {"exact": 0}}, "exact"),
        ({"edge": {"name": "e"}, "exchange": {"share": 0}}, "share"),
    ],
    ids=["empty", "no name", "bad name", "no folder", "section", "embedded", "address", "no bundle", "zero", "share"],
)
def test_configs_that_cannot_be(data: dict[str, dict[str, int | str]], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        edge_from_dict(data, where="edge.toml")


def test_a_config_that_is_not_toml(tmp_path: Path) -> None:
    (tmp_path / "edge.toml").write_text("name = ")

    with pytest.raises(ConfigError, match=r"edge.toml is not TOML"):
        load_edge(tmp_path / "edge.toml")
