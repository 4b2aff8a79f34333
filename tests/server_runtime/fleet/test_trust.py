"""Enrolment: the authority's folder, bundles and the files of a closed broker."""

from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from fedwright.protocol.crypto import signing
from fedwright.protocol.errors import ConfigError
from fedwright.protocol.link.security import access_list, read_bundle
from fedwright.server_runtime.fleet.trust import (
    Authority,
    enroll,
    enroll_edge,
    enroll_server,
    read_edges,
    secure_broker,
)
from helpers.present import present


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "trust")


def test_an_authority_is_the_same_when_opened_again(authority: Authority) -> None:
    again = Authority.open(authority.folder)

    assert again.public_key == authority.public_key
    assert signing.verify(authority.public_key, b"task", again.sign(b"task"))


def test_an_authority_is_not_overwritten(authority: Authority) -> None:
    with pytest.raises(ConfigError, match="already holds an authority"):
        Authority.create(authority.folder)


@pytest.mark.parametrize("name", ["ca.pem", "ca.key", "signing.key"])
@pytest.mark.parametrize("content", [b"", b"-----BEGIN GARBAGE-----"], ids=["empty", "garbage"])
def test_a_damaged_authority_is_named(authority: Authority, name: str, content: bytes) -> None:
    (authority.folder / name).write_bytes(content)

    with pytest.raises(ConfigError, match=r"holds no usable authority|cannot be used"):
        use_all(Authority(authority.folder))


def use_all(authority: Authority) -> None:
    authority.check_signing()
    authority.issue_device("pi-9", authority.folder / "pi-9")


def test_keys_in_the_wrong_place_are_noticed(authority: Authority) -> None:
    (authority.folder / "ca.key").write_bytes((authority.folder / "signing.key").read_bytes())

    with pytest.raises(ConfigError, match="of another kind"):
        use_all(Authority(authority.folder))


def test_private_keys_are_private(authority: Authority) -> None:
    bundle = enroll(authority, "pi-1", fleet="home", broker="mqtts://host:8883")

    keys = [authority.folder / "ca.key", authority.folder / "signing.key", bundle / "key.pem"]
    assert [oct(key.stat().st_mode & 0o777) for key in keys] == ["0o600"] * 3


def test_a_bundle_holds_what_a_device_needs(authority: Authority) -> None:
    bundle = read_bundle(enroll(authority, "pi-1", fleet="home", broker="mqtts://host:8883"))

    assert (bundle.info.device, bundle.info.fleet, bundle.info.broker) == ("pi-1", "home", "mqtts://host:8883")
    assert bundle.verify(b"task", authority.sign(b"task"))
    assert not bundle.verify(b"other", authority.sign(b"task"))
    cert = x509.load_pem_x509_certificate(bundle.cert.read_bytes())
    assert cert.subject.rfc4514_string() == "CN=pi-1"
    cert.verify_directly_issued_by(x509.load_pem_x509_certificate(bundle.ca.read_bytes()))


@pytest.mark.parametrize("device", ["server", "a/b", "", "+", "x" * 65])
def test_names_that_would_open_other_doors_are_refused(authority: Authority, device: str) -> None:
    with pytest.raises(ConfigError, match="device"):
        enroll(authority, device, fleet="home", broker="mqtts://host")


def test_a_device_is_not_enrolled_twice_by_mistake(authority: Authority) -> None:
    enroll(authority, "pi-1", fleet="home", broker="mqtts://host")

    with pytest.raises(ConfigError, match="already holds a bundle for pi-1"):
        enroll(authority, "pi-1", fleet="home", broker="mqtts://host")


@pytest.mark.parametrize("name", ["bundle.json", "ca.pem", "cert.pem", "key.pem"])
def test_an_incomplete_bundle_is_named(authority: Authority, name: str) -> None:
    folder = enroll(authority, "pi-1", fleet="home", broker="mqtts://host")
    (folder / name).unlink()

    with pytest.raises(ConfigError, match=f"{name} is missing"):
        read_bundle(folder)


@pytest.mark.parametrize(
    "content",
    [b"{", b'{"device":"x"}', b'{"device":"x","fleet":"f","broker":"b","server_key":"zz"}',
     b'{"device":"x","fleet":"f","broker":"b","server_key":"00"}'],
    ids=["cut", "fields", "not hexadecimal", "short key"],
)  # fmt: skip
def test_an_unreadable_bundle_is_named(authority: Authority, content: bytes) -> None:
    folder = enroll(authority, "pi-1", fleet="home", broker="mqtts://host")
    (folder / "bundle.json").write_bytes(content)

    with pytest.raises(ConfigError, match=r"bundle\.json.*enroll the device again"):
        read_bundle(folder)


def test_the_server_keeps_its_identity(authority: Authority) -> None:
    first = present(enroll_server(authority).cert).read_bytes()

    assert present(enroll_server(authority).cert).read_bytes() == first


def test_the_broker_files_are_ready_for_use(authority: Authority) -> None:
    tls = secure_broker(authority, fleet="home", hosts=["broker.local", "10.0.0.1"], port=8884)

    config = (authority.folder / "broker" / "mosquitto.conf").read_text()
    cert = x509.load_pem_x509_certificate(tls.cert.read_bytes())
    names = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["broker.local"]
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.1"]
    assert "listener 8884 0.0.0.0\n" in config
    assert "require_certificate true\n" in config
    assert "allow_anonymous false\n" in config
    assert tls.acl.read_text() == access_list(["home"])


def test_a_broker_needs_a_name(authority: Authority) -> None:
    with pytest.raises(ConfigError, match="at least one host"):
        secure_broker(authority, fleet="home", hosts=[])


def test_devices_of_an_edge_may_speak_there_and_nobody_else(authority: Authority) -> None:
    enroll_edge(authority, "site-a", fleet="home", broker="mqtts://host:8883")
    bundle = enroll(authority, "pi-1", fleet="home", broker="mqtts://host:8883", edges=["site-a", "site-b"])
    enroll(authority, "pi-2", fleet="home", broker="mqtts://host:8883", edges=["site-a"])
    lines = secure_broker(authority, fleet="home", hosts=["host"]).acl.read_text().splitlines()

    assert read_bundle(bundle).info.edges == ["site-a", "site-b"]
    assert read_edges(authority.folder) == {"site-a": ["pi-1", "pi-2"], "site-b": ["pi-1"]}
    rights: dict[str, Any] = {}
    for line in lines:
        if line.startswith("user "):
            user = line.removeprefix("user ")
        elif line.startswith("topic "):
            rights.setdefault(user, []).append(line.removeprefix("topic "))
    assert rights["site-a"] == ["readwrite fedwright/site-a/#"]
    assert rights["pi-2"] == [
        "write fedwright/site-a/up/pi-2",
        "read fedwright/site-a/down/pi-2",
        "read fedwright/site-a/shared",
    ]


def test_an_edge_is_enrolled_once_and_has_no_signing_key(authority: Authority) -> None:
    first = enroll_edge(authority, "site-a", fleet="home", broker="mqtts://host:8883")
    cert = (first / "cert.pem").read_bytes()

    assert enroll_edge(authority, "site-a", fleet="home", broker="mqtts://host:8883") == first
    assert (first / "cert.pem").read_bytes() == cert
    assert sorted(path.name for path in first.iterdir()) == ["bundle.json", "ca.pem", "cert.pem", "key.pem"]


@pytest.mark.parametrize("name", ["server", "home", "pi-1"])
def test_an_edge_with_a_name_that_is_taken(authority: Authority, name: str) -> None:
    enroll(authority, "pi-1", fleet="home", broker="mqtts://host:8883")

    with pytest.raises(ConfigError, match="would have the name of the server, the fleet or a device; choose another"):
        enroll_edge(authority, name, fleet="home", broker="mqtts://host:8883")


def test_a_device_with_the_name_of_an_edge(authority: Authority) -> None:
    enroll(authority, "pi-1", fleet="home", broker="mqtts://host:8883", edges=["site-a"])

    with pytest.raises(ConfigError, match="would have the name of an edge"):
        enroll(authority, "site-a", fleet="home", broker="mqtts://host:8883")


def test_a_damaged_list_of_edges(authority: Authority) -> None:
    (authority.folder / "edges.json").write_text("[")

    with pytest.raises(ConfigError, match=r"edges.json cannot be read"):
        read_edges(authority.folder)
