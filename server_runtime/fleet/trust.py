"""The fleet's own authority: certificates of the broker, the server and each device, and the key that signs tasks."""

import datetime
import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedwright.protocol import topics
from fedwright.protocol.errors import ConfigError
from fedwright.protocol.link.broker import mosquitto_config
from fedwright.protocol.link.security import SERVER_NAME, BrokerTls, BundleInfo, TlsFiles, access_list, fleet_of
from fedwright.protocol.support.files import replace_file, write_private
from fedwright.protocol.support.unreadable import UNREADABLE
from fedwright.server_runtime.fleet.revocation import CRL, note_issued, read_issued, read_revoked, write_revoked

AUTHORITY_DAYS = 3650
CERTIFICATE_DAYS = 730
# Boards without a battery start with a clock of last week.
CLOCK_SLACK_DAYS = 30
BROKER_NAME = "broker"
EDGES = "edges.json"


@dataclass(frozen=True)
class Credentials:
    """A private key with its certificate, as files."""

    cert: Path
    key: Path


class Authority:
    """A folder with `ca.pem`, `ca.key` and `signing.key`; the two keys never leave the server."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca = folder / "ca.pem"
        try:
            self._cert = x509.load_pem_x509_certificate(self.ca.read_bytes())
            key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), password=None)
            signing = serialization.load_pem_private_key((folder / "signing.key").read_bytes(), password=None)
        except (OSError, ValueError) as err:
            raise ConfigError(
                f"{folder} holds no usable authority ({err}); make one with `fedwright server enroll`"
            ) from err

        if not (isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(signing, ed25519.Ed25519PrivateKey)):
            raise ConfigError(f"the keys in {folder} are of another kind; make a new authority")
        self._key = key
        self._signing = signing

    @classmethod
    def create(cls, folder: Path, *, name: str = "fedwright") -> "Authority":
        """Make a new authority; ConfigError when the folder has one, whose devices would be locked out."""
        if (folder / "ca.key").exists():
            raise ConfigError(
                f"{folder} already holds an authority; remove it first if all devices shall be enrolled anew"
            )
        folder.mkdir(parents=True, exist_ok=True)
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _name(f"{name} authority")
        builder = _builder(subject, subject, key.public_key(), days=AUTHORITY_DAYS)
        cert = (
            builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        write_private(folder / "signing.key", _pem(ed25519.Ed25519PrivateKey.generate()))
        replace_file(folder / "ca.pem", cert.public_bytes(serialization.Encoding.PEM))
        write_private(folder / "ca.key", _pem(key))
        return cls(folder)

    @classmethod
    def open(cls, folder: Path) -> "Authority":
        """The authority in a folder, made when there is none."""
        return cls(folder) if (folder / "ca.key").exists() else cls.create(folder)

    @property
    def public_key(self) -> bytes:
        """The key that checks what `sign` signs."""
        raw = serialization.Encoding.Raw, serialization.PublicFormat.Raw
        return self._signing.public_key().public_bytes(*raw)

    def sign(self, message: bytes) -> bytes:
        """Ed25519 signature of a message, for `codec.encode`."""
        return self._signing.sign(message)

    def issue_device(self, device: str, folder: Path) -> Credentials:
        """Certificate of a device or of the server: its common name is the user of the broker's access list."""
        return self._issue(topics.check_name(device, what="device"), folder, hosts=())

    def issue_broker(self, hosts: Sequence[str], folder: Path) -> Credentials:
        """Certificate of a broker, good for these host names and addresses."""
        if not hosts:
            raise ConfigError("a broker's certificate needs at least one host name or address; give --host")
        return self._issue(BROKER_NAME, folder, hosts=hosts)

    def _issue(self, name: str, folder: Path, *, hosts: Sequence[str]) -> Credentials:
        folder.mkdir(parents=True, exist_ok=True)
        key = ec.generate_private_key(ec.SECP256R1())
        # A broker's certificate lets nobody in as a device, nor the other way round.
        purpose = ExtendedKeyUsageOID.SERVER_AUTH if hosts else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = (
            _builder(_name(name), self._cert.subject, key.public_key(), days=CERTIFICATE_DAYS)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        if hosts:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False
            )
        cert = builder.sign(self._key, hashes.SHA256())
        identity = Credentials(folder / "cert.pem", folder / "key.pem")
        write_private(identity.key, _pem(key))
        replace_file(identity.cert, cert.public_bytes(serialization.Encoding.PEM))
        note_issued(self.folder, name, cert.serial_number)
        return identity

    def void(self, serials: Iterable[int]) -> Path:
        """Add certificates to the list of void ones, which the broker reads; returns its file."""
        file = self.folder / "broker" / CRL
        number, revoked = 0, list[x509.RevokedCertificate]()
        if file.exists():
            before = x509.load_pem_x509_crl(file.read_bytes())
            number = before.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
            revoked = list(before)
        # Of two lists OpenSSL believes the younger one, and none from the future; so the date counts the lists.
        date = self._cert.not_valid_before_utc + datetime.timedelta(seconds=number + 1)
        known = {entry.serial_number for entry in revoked}
        for serial in sorted(set(serials) - known):
            revoked.append(x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(date).build())
        builder = (
            x509.CertificateRevocationListBuilder(revoked_certificates=revoked)
            .issuer_name(self._cert.subject)
            .last_update(date)
            .next_update(self._cert.not_valid_after_utc)
            .add_extension(x509.CRLNumber(number + 1), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        replace_file(file, builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        return file


def enroll(
    authority: Authority,
    device: str,
    *,
    fleet: str,
    broker: str,
    folder: Path | None = None,
    edges: Sequence[str] = (),
) -> Path:
    """Make the bundle that a device starts from; returns its folder. edges: the edge servers that it belongs to."""
    topics.check_name(device, what="device")
    topics.check_name(fleet, what="fleet")
    if device == SERVER_NAME:
        raise ConfigError(f"device {device!r} would have the server's name; choose another")
    if device in (*edges, *read_edges(authority.folder)):
        raise ConfigError(f"device {device!r} would have the name of an edge; choose another")
    target = folder or authority.folder / "devices" / device
    bundle = _bundle(authority, device, fleet=fleet, broker=broker, target=target, edges=edges)
    if edges:
        known = read_edges(authority.folder)
        for edge in edges:
            known[edge] = sorted({*known.get(edge, []), device})
        replace_file(authority.folder / EDGES, msgspec.json.format(msgspec.json.encode(known, order="sorted")))
    return bundle


def enroll_edge(authority: Authority, edge: str, *, fleet: str, broker: str) -> Path:
    """Make the bundle that an edge server starts from, once; returns its folder.

    An edge has a certificate and no signing key: it passes the server's signed orders on as they are.
    """
    topics.check_name(edge, what="edge")
    if edge in (SERVER_NAME, fleet) or (authority.folder / "devices" / edge).exists():
        raise ConfigError(f"edge {edge!r} would have the name of the server, the fleet or a device; choose another")
    target = authority.folder / "edges" / edge
    if (target / "bundle.json").exists() and edge not in read_revoked(authority.folder):
        return target
    return _bundle(authority, edge, fleet=fleet, broker=broker, target=target, edges=())


def read_edges(folder: Path) -> dict[str, list[str]]:
    """The devices that each edge may speak for."""
    file = folder / EDGES
    if not file.exists():
        return {}
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, list[str]])
    except UNREADABLE as err:
        raise ConfigError(f"{file} cannot be read ({err}); restore it or enroll the devices of edges anew") from err


def write_access(authority: Authority, *, fleet: str) -> Path:
    """The broker's access list as the enrolled edges and devices need it."""
    acl = authority.folder / "broker" / "access.list"
    acl.write_text(access_list(fleet, read_edges(authority.folder), revoked=read_revoked(authority.folder)))
    return acl


def revoke(authority: Authority, name: str) -> None:
    """Shut out a device or an edge: void its certificates, tell the broker's access list and a running server."""
    topics.check_name(name, what="device")
    if name == SERVER_NAME:
        raise ConfigError("the server's own certificate is not revoked like a device's; make a new authority")
    serials = _serials(authority.folder, name)
    acl = authority.folder / "broker" / "access.list"
    if not serials or not acl.exists():
        raise ConfigError(f"{authority.folder} made no certificate for {name}; give the --trust it was enrolled with")
    write_revoked(authority.folder, {*read_revoked(authority.folder), name})
    authority.void(serials)
    write_access(authority, fleet=fleet_of(acl.read_text()))


def _serials(folder: Path, name: str) -> set[int]:
    files = [folder / kind / name / "cert.pem" for kind in ("devices", "edges")]
    held = {x509.load_pem_x509_certificate(file.read_bytes()).serial_number for file in files if file.exists()}
    return held | read_issued(folder, name)


def _bundle(authority: Authority, device: str, *, fleet: str, broker: str, target: Path, edges: Sequence[str]) -> Path:
    if (target / "bundle.json").exists() and device not in read_revoked(authority.folder):
        raise ConfigError(
            f"{target} already holds a bundle for {device}; copy that one, or make it void first with "
            f"`fedwright server revoke {device}`"
        )
    authority.issue_device(device, target)
    _readmit(authority, device, fleet=fleet)
    (target / "ca.pem").write_bytes(authority.ca.read_bytes())
    key = authority.public_key.hex()
    info = BundleInfo(device=device, fleet=fleet, broker=broker, server_key=key, edges=list(edges))
    (target / "bundle.json").write_bytes(msgspec.json.format(msgspec.json.encode(info)))
    return target


def _readmit(authority: Authority, name: str, *, fleet: str) -> None:
    """A new certificate opens the doors again that `revoke` shut; the old one stays void."""
    revoked = set(read_revoked(authority.folder))
    if name in revoked:
        write_revoked(authority.folder, revoked - {name})
        write_access(authority, fleet=fleet)


def enroll_server(authority: Authority) -> TlsFiles:
    """The server's own identity towards the broker, made once."""
    folder = authority.folder / "server"
    if not (folder / "cert.pem").exists():
        authority.issue_device(SERVER_NAME, folder)
    return TlsFiles(authority.ca, folder / "cert.pem", folder / "key.pem")


def secure_broker(authority: Authority, *, fleet: str, hosts: Sequence[str], port: int = 8883) -> BrokerTls:
    """Certificate, access list and a ready `mosquitto.conf` for the fleet's broker, in `broker/`."""
    folder = authority.folder / "broker"
    identity = authority.issue_broker(hosts, folder)
    acl = write_access(authority, fleet=fleet)
    tls = BrokerTls(ca=authority.ca, cert=identity.cert, key=identity.key, acl=acl, crl=authority.void(()))
    config = mosquitto_config(tls.listener(port, "0.0.0.0"), folder=folder, durable=True, user=None)
    (folder / "mosquitto.conf").write_text(config)
    return tls


def _pem(key: ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _builder(
    subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey, *, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=CLOCK_SLACK_DAYS))
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
