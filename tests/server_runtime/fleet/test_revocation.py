"""Revocation in the folder of trust, and the server's ears."""

import shutil
from pathlib import Path
from typing import Any, cast

import pytest
from cryptography import x509

from fedwright.protocol import codec, topics
from fedwright.protocol.blobs import BlobStore
from fedwright.protocol.errors import ConfigError
from fedwright.protocol.link.memory import MemoryBroker
from fedwright.protocol.messages import Get, Gone, Message, Refusal
from fedwright.server_runtime.fleet.revocation import Gate, read_revoked
from fedwright.server_runtime.fleet.trust import Authority, enroll, enroll_edge, revoke, secure_broker
from fedwright.server_runtime.transport.device_channel import DeviceChannel, Heard

FLEET = "home"
BROKER = "mqtts://host:8883"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    made = Authority.create(tmp_path / "trust")
    secure_broker(made, fleet=FLEET, hosts=["host"])
    return made


def void(authority: Authority) -> x509.CertificateRevocationList:
    return x509.load_pem_x509_crl((authority.folder / "broker" / "revoked.crl").read_bytes())


def serial(bundle: Path) -> int:
    return x509.load_pem_x509_certificate((bundle / "cert.pem").read_bytes()).serial_number


def access(authority: Authority) -> str:
    return (authority.folder / "broker" / "access.list").read_text()


def test_a_new_broker_reads_a_list_that_is_empty_and_signed(authority: Any) -> None:
    ca = x509.load_pem_x509_certificate(authority.ca.read_bytes())

    assert list(void(authority)) == []
    assert void(authority).is_signature_valid(cast(Any, ca.public_key()))
    assert (
        f"crlfile {authority.folder.resolve()}/broker/revoked.crl"
        in (authority.folder / "broker" / "mosquitto.conf").read_text()
    )


def test_a_later_list_holds_all_and_is_younger(authority: Authority) -> None:
    bundles = [enroll(authority, name, fleet=FLEET, broker=BROKER) for name in ("a", "b")]
    lists = [void(authority)]
    for name in ("a", "b", "b"):
        revoke(authority, name)
        lists.append(void(authority))

    assert {entry.serial_number for entry in lists[-1]} == {serial(bundle) for bundle in bundles}
    dates = [each.last_update_utc for each in lists]
    assert dates == sorted(set(dates))
    assert read_revoked(authority.folder) == ["a", "b"]


def test_a_device_whose_bundle_was_moved_away_can_be_revoked(authority: Authority) -> None:
    bundle = enroll(authority, "a", fleet=FLEET, broker=BROKER)
    number = serial(bundle)
    shutil.rmtree(bundle)

    revoke(authority, "a")

    assert [entry.serial_number for entry in void(authority)] == [number]


def test_a_device_enrolled_before_certificates_were_noted_can_be_revoked(authority: Authority) -> None:
    bundle = enroll(authority, "a", fleet=FLEET, broker=BROKER)
    (authority.folder / "issued.list").unlink()

    revoke(authority, "a")

    assert [entry.serial_number for entry in void(authority)] == [serial(bundle)]


def test_the_access_list_denies_until_the_device_is_enrolled_anew(authority: Authority, tmp_path: Path) -> None:
    enroll(authority, "a", fleet=FLEET, broker=BROKER)
    before = access(authority)

    revoke(authority, "a")
    denied = access(authority)
    enroll(authority, "a", fleet=FLEET, broker=BROKER, folder=tmp_path / "new")

    assert denied == before + "user a\ntopic deny #\n"
    assert access(authority) == before
    assert read_revoked(authority.folder) == []
    assert len(list(void(authority))) == 1


def test_a_revoked_edge_and_a_revoked_device_of_an_edge_lose_their_topics(authority: Authority) -> None:
    enroll_edge(authority, "site", fleet=FLEET, broker=BROKER)
    for name in ("a", "b"):
        enroll(authority, name, fleet=FLEET, broker=BROKER, edges=["site"])

    revoke(authority, "a")
    without_a = access(authority)
    revoke(authority, "site")

    assert topics.up("site", "b") in without_a
    assert topics.up("site", "a") not in without_a
    assert "fedwright/site/" not in access(authority)
    assert "user site\ntopic deny #\n" in access(authority)


@pytest.mark.parametrize(
    ("name", "message"),
    [("nobody", "made no certificate for nobody"), ("server", "server's own certificate"), ("a/b", "must be 1 to 64")],
)
def test_mistakes_are_one_sentence_and_change_nothing(authority: Authority, name: str, message: str) -> None:
    before = void(authority)

    with pytest.raises(ConfigError, match=message):
        revoke(authority, name)

    assert void(authority) == before
    assert read_revoked(authority.folder) == []


class Bench:
    """A server that hears devices a and b."""

    def __init__(self, folder: Path, trust: Path) -> None:
        self._broker = MemoryBroker()
        self.device = self._broker.link("device")
        self.device.subscribe("#")
        self.server = DeviceChannel(self._broker.link("server"), FLEET, blobs=BlobStore(folder))
        self.server.gate = Gate(trust)

    def say(self, name: str, message: Message) -> None:
        self.device.send(topics.up(FLEET, name), codec.encode(message, sender=name, boot=f"boot-{name}"))

    def heard(self) -> list[tuple[str, str, Message]]:
        events = self.server.poll(0.0)
        return [(event.device, event.boot, event.message) for event in events if isinstance(event, Heard)]


def test_a_running_server_ignores_who_is_revoked_and_takes_it_for_gone(authority: Authority, tmp_path: Path) -> None:
    for name in ("a", "b"):
        enroll(authority, name, fleet=FLEET, broker=BROKER)
    bench = Bench(tmp_path / "blobs", authority.folder)
    word = Refusal("t", "failed", "no")
    bench.say("a", word)
    bench.say("b", word)
    assert bench.heard() == [("a", "boot-a", word), ("b", "boot-b", word)]

    revoke(authority, "a")
    bench.say("a", word)
    bench.say("b", word)

    assert bench.heard() == [("a", "boot-a", Gone()), ("b", "boot-b", word)]
    bench.say("a", word)
    bench.say("a", Get("0" * 64, [0]))
    assert bench.heard() == []


def test_a_device_enrolled_anew_is_heard_again(authority: Authority, tmp_path: Path) -> None:
    enroll(authority, "a", fleet=FLEET, broker=BROKER)
    revoke(authority, "a")
    bench = Bench(tmp_path / "blobs", authority.folder)
    bench.say("a", Refusal("t", "failed", "no"))
    assert bench.heard() == []

    enroll(authority, "a", fleet=FLEET, broker=BROKER, folder=tmp_path / "new")
    bench.say("a", Refusal("t", "failed", "no"))

    assert [device for device, _, _ in bench.heard()] == ["a"]


def test_a_gate_sees_a_revocation_and_a_new_enrolment_at_once(authority: Authority) -> None:
    gate = Gate(authority.folder)
    enroll(authority, "a", fleet=FLEET, broker=BROKER)

    seen = [gate.bars("a")]
    revoke(authority, "a")
    seen.append(gate.bars("a"))
    enroll(authority, "a", fleet=FLEET, broker=BROKER)
    seen.append(gate.bars("a"))

    assert seen == [False, True, False]


def test_a_gate_warns_once_of_those_who_speak_or_were_heard(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate(authority.folder)
    for name in ("heard", "speaks", "silent"):
        enroll(authority, name, fleet=FLEET, broker=BROKER)
        revoke(authority, name)
    gate.note("heard", "boot")

    told = [gate.leavers(), gate.leavers(), gate.bars("speaks"), gate.bars("speaks"), gate.bars("other")]

    assert told == [[("heard", "boot")], [], True, True, False]
    assert [(vars(record)["fate"], vars(record)["device"]) for record in caplog.records] == [
        ("revoked", "heard"),
        ("revoked", "speaks"),
    ]
