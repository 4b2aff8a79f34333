"""Keys that devices make themselves, tokens, certificates that end, keys that take turns, and who signed what."""

import datetime
from base64 import b64decode, b64encode
from pathlib import Path

import pytest
from cryptography import x509
from msgspec import structs

from fedwright.cli.main import main
from fedwright.device_runtime.enrol import keep_reply, request_for
from fedwright.protocol.errors import ConfigError
from fedwright.protocol.link.security import Bundle, fleets_of, read_bundle
from fedwright.server_runtime.config import FleetSection
from fedwright.server_runtime.fleet.authority import NEXT_SIGNING, PASSPHRASE_VARIABLE, SIGNING, Authority
from fedwright.server_runtime.fleet.device_keys import DeviceKeys
from fedwright.server_runtime.fleet.expiry import endings, renew
from fedwright.server_runtime.fleet.tokens import Tokens
from fedwright.server_runtime.fleet.trust import enroll, enroll_server, revoke, secure_broker

BROKER = "mqtts://host:8883"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    made = Authority.create(tmp_path / "trust")
    secure_broker(made, fleet="home", hosts=["host"])
    return made


def redeemed(authority: Authority, folder: Path, device: str = "pi-1") -> Bundle:
    """The bundle of a device that made its own key."""
    tokens = Tokens(authority)
    token = tokens.offer(device, fleet="home", broker=BROKER)
    keep_reply(tokens.redeem(request_for(device, folder, token=token)), folder)
    return read_bundle(folder)


def test_a_device_keeps_its_key_and_gets_all_else(authority: Authority, tmp_path: Path) -> None:
    bundle = redeemed(authority, tmp_path / "pi-1")

    cert = x509.load_pem_x509_certificate(bundle.cert.read_bytes())
    assert cert.subject.rfc4514_string() == "CN=pi-1"
    assert not list(authority.folder.rglob("devices/pi-1/key.pem"))
    assert oct(bundle.key.stat().st_mode & 0o777) == "0o600"
    assert bundle.verify(b"task", authority.sign(b"task"))
    assert DeviceKeys(authority.folder).verify("pi-1", b"update", bundle.sign(b"update"))


def test_a_token_is_good_once(authority: Authority, tmp_path: Path) -> None:
    tokens = Tokens(authority)
    token = tokens.offer("pi-1", fleet="home", broker=BROKER)
    tokens.redeem(request_for("pi-1", tmp_path / "a", token=token))

    with pytest.raises(ConfigError, match="unknown or was used before"):
        tokens.redeem(request_for("pi-1", tmp_path / "b", token=token))


def test_a_token_ends(authority: Authority, tmp_path: Path) -> None:
    token = Tokens(authority, clock=lambda: 0.0).offer("pi-1", fleet="home", broker=BROKER, hours=1)

    with pytest.raises(ConfigError, match="has expired"):
        Tokens(authority, clock=lambda: 3600.0).redeem(request_for("pi-1", tmp_path / "a", token=token))


def test_a_token_is_for_its_device_and_is_not_kept_in_the_clear(authority: Authority, tmp_path: Path) -> None:
    tokens = Tokens(authority)
    token = tokens.offer("pi-1", fleet="home", broker=BROKER)
    request = request_for("pi-2", tmp_path / "b", token=token)

    with pytest.raises(ConfigError, match="for pi-1, not for pi-2"):
        tokens.redeem(request)
    with pytest.raises(ConfigError, match="unknown"):
        tokens.redeem(structs.replace(request, token="pi-1.guess.mark"))
    secret = token.rsplit(".", 2)[1]
    assert all(secret.encode() not in file.read_bytes() for file in authority.folder.rglob("*") if file.is_file())


def test_a_request_must_be_signed_by_its_key(authority: Authority, tmp_path: Path) -> None:
    tokens = Tokens(authority)
    token = tokens.offer("pi-1", fleet="home", broker=BROKER)

    with pytest.raises(ConfigError, match="cannot be read"):
        tokens.redeem(structs.replace(request_for("pi-1", tmp_path / "a", token=token), csr="nothing"))


# The version of a request and the curve of its key, each as one that nobody knows.
STRANGE = {"version": ("020100", "020109"), "curve": ("06082a8648ce3d030107", "06082a8648ce3d03017f")}


@pytest.mark.parametrize("part", sorted(STRANGE))
def test_a_request_of_a_kind_that_nobody_knows_is_refused_and_the_token_stays_good(
    authority: Authority, tmp_path: Path, part: str
) -> None:
    tokens = Tokens(authority)
    request = request_for("pi-1", tmp_path / "a", token=tokens.offer("pi-1", fleet="home", broker=BROKER))
    head, *lines, foot = request.csr.strip().splitlines()
    old, new = map(bytes.fromhex, STRANGE[part])
    strange = b64encode(b64decode("".join(lines)).replace(old, new, 1)).decode()

    with pytest.raises(ConfigError, match="the signing request of pi-1 cannot be read"):
        tokens.redeem(structs.replace(request, csr="\n".join([head, strange, foot])))
    assert tokens.redeem(request).info.device == "pi-1"


def test_a_damaged_key_or_a_strange_certificate_in_a_reply_is_named(authority: Authority, tmp_path: Path) -> None:
    tokens = Tokens(authority)
    request = request_for("pi-2", tmp_path / "a", token=tokens.offer("pi-2", fleet="home", broker=BROKER))
    reply = tokens.redeem(request)
    head, *lines, foot = reply.cert.strip().splitlines()
    strange = b64encode(b64decode("".join(lines)).replace(bytes.fromhex("a003020102"), bytes.fromhex("a003020109")))

    with pytest.raises(ConfigError, match="the reply holds no certificate"):
        keep_reply(structs.replace(reply, cert="\n".join([head, strange.decode(), foot])), tmp_path / "a")
    (tmp_path / "a" / "key.pem").write_text("-----BEGIN PRIVATE KEY-----\n")
    with pytest.raises(ConfigError, match=r"key\.pem cannot be read"):
        keep_reply(reply, tmp_path / "a")
    with pytest.raises(ConfigError, match=r"key\.pem cannot be read"):
        request_for("pi-2", tmp_path / "a")


def test_a_reply_for_another_key_is_not_kept(authority: Authority, tmp_path: Path) -> None:
    tokens = Tokens(authority)
    reply = tokens.redeem(request_for("pi-1", tmp_path / "a", token=tokens.offer("pi-1", fleet="home", broker=BROKER)))
    request_for("pi-1", tmp_path / "b")

    with pytest.raises(ConfigError, match="for another key"):
        keep_reply(reply, tmp_path / "b")


def test_a_device_that_is_enrolled_gets_no_second_certificate(authority: Authority, tmp_path: Path) -> None:
    redeemed(authority, tmp_path / "pi-1")

    with pytest.raises(ConfigError, match=r"make it void first with `fedwright server revoke pi-1`"):
        Tokens(authority).offer("pi-1", fleet="home", broker=BROKER)
    revoke(authority, "pi-1")
    assert redeemed(authority, tmp_path / "again").info.device == "pi-1"


def test_requests_and_replies_can_be_carried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert main(["device", "enroll", "--device", "pi-1", "--request", "pi-1.request"]) == 0
    assert main(["server", "enroll", "--request", "pi-1.request", "--broker", BROKER]) == 0
    assert main(["device", "enroll", "--device", "pi-1", "--reply", "pi-1.reply"]) == 0

    bundle = read_bundle(tmp_path / "pi-1")
    assert DeviceKeys(tmp_path / "trust").verify("pi-1", b"update", bundle.sign(b"update"))


def test_the_word_of_a_revoked_device_is_not_believed(authority: Authority, tmp_path: Path) -> None:
    bundle = read_bundle(enroll(authority, "pi-1", fleet="home", broker=BROKER, folder=tmp_path / "pi-1"))
    keys = DeviceKeys(authority.folder, clock=iter([0.0, 0.0, 10.0, 10.0]).__next__)
    signature = bundle.sign(b"update")
    assert keys.verify("pi-1", b"update", signature)

    revoke(authority, "pi-1")

    assert not keys.verify("pi-1", b"update", signature)


def test_another_devices_signature_is_not_believed(authority: Authority, tmp_path: Path) -> None:
    bundles = {
        name: read_bundle(enroll(authority, name, fleet="home", broker=BROKER, folder=tmp_path / name))
        for name in ("pi-1", "pi-2")
    }

    assert not DeviceKeys(authority.folder).verify("pi-1", b"update", bundles["pi-2"].sign(b"update"))


def test_what_ends_soon_is_told_and_renewed(authority: Authority, tmp_path: Path) -> None:
    redeemed(authority, tmp_path / "pi-1")
    enroll(authority, "pi-2", fleet="home", broker=BROKER)
    enroll_server(authority)
    in_two_years = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(days=700)

    assert endings(authority.folder) == []
    told = {one.name: one.days for one in endings(authority.folder, now=in_two_years)}
    assert told == {"broker": 29, "pi-1": 29, "pi-2": 29, "server": 29}
    assert "renew it with `fedwright server renew pi-1`" in endings(authority.folder, now=in_two_years)[1].line()
    past = endings(authority.folder, now=in_two_years + datetime.timedelta(days=40))
    assert "has ended 11 days ago" in past[0].line()


def test_a_renewed_certificate_is_for_the_same_key(authority: Authority, tmp_path: Path) -> None:
    old = redeemed(authority, tmp_path / "pi-1")

    folder = renew(authority, "pi-1")

    new, before = (x509.load_pem_x509_certificate(file.read_bytes()) for file in (folder / "cert.pem", old.cert))
    assert new.public_key() == before.public_key()
    assert new.serial_number != before.serial_number
    assert DeviceKeys(authority.folder).verify("pi-1", b"update", old.sign(b"update"))


def test_a_renewed_broker_keeps_its_names(authority: Authority) -> None:
    folder = renew(authority, "broker")

    cert = x509.load_pem_x509_certificate((folder / "cert.pem").read_bytes())
    names = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(name.value) for name in names] == ["host"]


def test_one_signing_key_takes_the_place_of_the_other(authority: Authority, tmp_path: Path) -> None:
    bundle = read_bundle(enroll(authority, "pi-1", fleet="home", broker=BROKER, folder=tmp_path / "pi-1"))
    before = authority.sign(b"task")

    authority.rotate()

    assert authority.sign(b"task") != before
    assert bundle.verify(b"task", before)
    assert bundle.verify(b"task", authority.sign(b"task"))
    later = read_bundle(enroll(authority, "pi-2", fleet="home", broker=BROKER, folder=tmp_path / "pi-2"))
    assert not later.verify(b"task", before)
    authority.rotate()
    assert not bundle.verify(b"task", authority.sign(b"task"))
    assert later.verify(b"task", authority.sign(b"task"))


def test_keys_may_lie_behind_a_passphrase(tmp_path: Path) -> None:
    phrase = {PASSPHRASE_VARIABLE: "long and secret"}
    Authority.create(tmp_path / "trust", environment=phrase)

    for file in ("ca.key", SIGNING, NEXT_SIGNING):
        assert b"ENCRYPTED" in (tmp_path / "trust" / file).read_bytes()
    Authority(tmp_path / "trust", environment=phrase).check_signing()
    for wrong in ({}, {PASSPHRASE_VARIABLE: "guess"}):
        with pytest.raises(ConfigError, match=f"give its passphrase, if it has one, as {PASSPHRASE_VARIABLE}"):
            Authority(tmp_path / "trust", environment=wrong).check_signing()


def test_a_key_that_is_not_needed_may_lie_elsewhere(authority: Authority, tmp_path: Path) -> None:
    enroll_server(authority)
    (authority.folder / "ca.key").rename(tmp_path / "ca.key")
    host = Authority(authority.folder)
    host.check_signing()
    enroll_server(host)
    with pytest.raises(ConfigError, match=r"ca.key cannot be used"):
        enroll(host, "pi-1", fleet="home", broker=BROKER)

    (tmp_path / "ca.key").rename(authority.folder / "ca.key")
    (authority.folder / SIGNING).rename(tmp_path / SIGNING)
    enroll(Authority(authority.folder), "pi-1", fleet="home", broker=BROKER)


def test_a_second_fleet_is_added_to_the_access_list(authority: Authority) -> None:
    enroll(authority, "pi-1", fleet="home", broker=BROKER)
    enroll(authority, "pi-2", fleet="garden", broker=BROKER)
    revoke(authority, "pi-1")

    text = (authority.folder / "broker" / "access.list").read_text()
    assert fleets_of(text) == ["home", "garden"]
    assert "pattern write fedwright/garden/up/%u" in text
    assert "pattern write fedwright/home/up/%u" in text


def test_trust_over_an_open_broker_is_refused() -> None:
    with pytest.raises(ConfigError, match="trust is set but broker is an mqtt address"):
        FleetSection(broker="mqtt://host:1883", trust="trust")
