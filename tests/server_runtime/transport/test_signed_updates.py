"""Updates that a device did not sign are not heard, whoever brings them: a broker, another device, an edge."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedwright.protocol import codec, topics
from fedwright.protocol.blobs import BlobStore, make_ref
from fedwright.protocol.link.memory import MemoryBroker
from fedwright.protocol.link.security import Bundle, read_bundle
from fedwright.protocol.messages import Board, Carried, DataSummary, Part, Recipe, Report, Returns, Stats, Task, Update
from fedwright.server_runtime.fleet.authority import Authority
from fedwright.server_runtime.fleet.device_keys import DeviceKeys
from fedwright.server_runtime.fleet.revocation import Gate
from fedwright.server_runtime.fleet.trust import enroll, enroll_edge, revoke, secure_broker
from fedwright.server_runtime.transport.device_channel import DeviceChannel, Heard

BOARD = Board("b", "x86_64", 1, 1, "r", 1)
STATS = Stats(10, 1, 0.1, 0.1, 1)
UPDATE = Update("t1", 1, STATS)
URL = "mqtts://host:8883"


class Site:
    """A server that wants signatures, two enrolled devices and an edge, over a broker that does as it is told."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority.create(folder / "trust")
        secure_broker(self.authority, fleet="home", hosts=["host"])
        enroll_edge(self.authority, "edge", fleet="home", broker=URL)
        for device in ("pi-1", "pi-2"):
            enroll(self.authority, device, fleet="home", broker=URL, edges=["edge"])
        broker = MemoryBroker()
        self.link = broker.link("broker")
        self.blobs = BlobStore(folder / "blobs")
        self.channel = DeviceChannel(broker.link("server"), "home", blobs=self.blobs, sign=self.authority.sign)
        self.channel.gate = Gate(self.authority.folder)
        self.channel.require_signatures(DeviceKeys(self.authority.folder).verify)

    def bundle(self, name: str) -> Bundle:
        return read_bundle(self.authority.folder / ("edges" if name == "edge" else "devices") / name)

    def say(self, sender: str, body: Any, *, by: str | None = None) -> bytes:
        sign: Callable[[bytes], bytes] | None = None if by is None else self.bundle(by).sign
        return codec.encode(body, sender=sender, boot="b1", sign=sign)

    def hear(self, sender: str, payload: bytes) -> list[Any]:
        """What the server makes of a message that comes as one of the sender's."""
        self.link.send(topics.up("home", sender), payload)
        return [event.message for event in self.channel.poll(1.0) if isinstance(event, Heard)]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_what_a_device_signed_is_heard(site: Site) -> None:
    assert site.hear("pi-1", site.say("pi-1", UPDATE, by="pi-1")) == [UPDATE]


def test_what_nobody_signed_is_not_heard(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    assert site.hear("pi-1", site.say("pi-1", UPDATE)) == []
    assert "update is not signed; update the agent on the device" in caplog.text


def test_what_another_device_signed_is_not_heard(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    assert site.hear("pi-1", site.say("pi-1", UPDATE, by="pi-2")) == []
    assert "update has a wrong signature" in caplog.text


def test_what_was_changed_on_the_way_is_not_heard(site: Site) -> None:
    payload = site.say("pi-1", UPDATE, by="pi-1")

    assert site.hear("pi-1", payload.replace(b"t1", b"t2")) == []


def carried(site: Site, by: str | None) -> list[Any]:
    site.hear("edge", site.say("edge", Report("a", BOARD, 1, DataSummary(0, 0, [1], 1), edge=True)))
    return site.hear("edge", site.say("edge", Carried("pi-1", site.say("pi-1", UPDATE, by=by))))


@pytest.mark.parametrize(("by", "heard"), [("pi-1", [UPDATE]), (None, []), ("edge", [])], ids=["device", "no", "edge"])
def test_an_edge_cannot_make_a_devices_update(site: Site, by: str | None, heard: list[Any]) -> None:
    assert carried(site, by) == heard


def task(site: Site) -> Task:
    ref = make_ref(b"x")
    recipe = Recipe(batch=1, learning_rate=0.1, seed=1)
    return Task("t1", "b1", "r", 1, ref, ref, recipe, Returns(), deadline_s=1.0)


@pytest.mark.parametrize("revoked", [False, True], ids=["good", "revoked"])
def test_the_change_of_a_revoked_device_does_not_come_in_a_mean_either(site: Site, revoked: bool) -> None:
    report = Report("a", BOARD, 1, DataSummary(10, 0, [1], 1))
    site.hear("edge", site.say("edge", Report("a", BOARD, 1, DataSummary(0, 0, [1], 1), edge=True)))
    site.hear("edge", site.say("edge", Carried("pi-1", site.say("pi-1", report))))
    site.channel.assign("pi-1", "b1", task(site))
    if revoked:
        revoke(site.authority, "pi-1")
    mean = Update("t1", 1, STATS, parts=[Part("t1", STATS)])

    heard = site.hear("edge", site.say("edge", mean, by="edge"))

    assert (mean in heard) != revoked
