"""The fleet's own authority: it certifies devices, edges, server and broker, and holds the keys that sign tasks."""

import datetime
import ipaddress
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedwright.protocol import topics
from fedwright.protocol.errors import ConfigError
from fedwright.protocol.support.files import replace_file, write_private
from fedwright.server_runtime.fleet.device_keys import CERTIFICATES
from fedwright.server_runtime.fleet.revocation import CRL, note_issued

AUTHORITY_DAYS = 3650
CERTIFICATE_DAYS = 730
# Boards without a battery start with a clock of last week.
CLOCK_SLACK_DAYS = 30
BROKER_NAME = "broker"
PASSPHRASE_VARIABLE = "FEDWRIGHT_TRUST_PASSPHRASE"
# The key that signs now, and the one that devices accept beside it: it signs after the next rotation.
SIGNING, NEXT_SIGNING = "signing.key", "signing-next.key"


@dataclass(frozen=True)
class Credentials:
    """A private key with its certificate, as files."""

    cert: Path
    key: Path


class Authority:
    """A folder with `ca.pem`, `ca.key` and the keys that sign tasks, which never leave the server.

    Each key is read when it is used: a host that only runs needs no `ca.key`, and one that only enrolls needs none
    of the signing keys, so that the other may lie elsewhere. A passphrase, from the environment, opens those that
    were made with one.
    """

    def __init__(self, folder: Path, *, environment: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.ca = folder / "ca.pem"
        self._environment = os.environ if environment is None else environment
        try:
            self._cert = x509.load_pem_x509_certificate(self.ca.read_bytes())
        except (OSError, ValueError) as err:
            raise ConfigError(
                f"{folder} holds no usable authority ({err}); make one with `fedwright server enroll`"
            ) from err

    @classmethod
    def create(
        cls, folder: Path, *, name: str = "fedwright", environment: Mapping[str, str] | None = None
    ) -> "Authority":
        """Make a new authority; ConfigError when the folder has one, whose devices would be locked out."""
        if (folder / "ca.pem").exists() or (folder / "ca.key").exists():
            raise ConfigError(
                f"{folder} already holds an authority; remove it first if all devices shall be enrolled anew"
            )
        folder.mkdir(parents=True, exist_ok=True)
        phrase = _passphrase(os.environ if environment is None else environment)
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _name(f"{name} authority")
        builder = _builder(subject, subject, key.public_key(), days=AUTHORITY_DAYS)
        cert = (
            builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        for file in (SIGNING, NEXT_SIGNING):
            _make_signing_key(folder / file, phrase)
        write_private(folder / "ca.key", _pem(key, phrase))
        replace_file(folder / "ca.pem", cert.public_bytes(serialization.Encoding.PEM))
        return cls(folder, environment=environment)

    @classmethod
    def open(cls, folder: Path) -> "Authority":
        """The authority in a folder, made when there is none."""
        return cls(folder) if (folder / "ca.pem").exists() else cls.create(folder)

    @property
    def certificate(self) -> x509.Certificate:
        """The authority's own certificate."""
        return self._cert

    @cached_property
    def _key(self) -> ec.EllipticCurvePrivateKey:
        key = self._load("ca.key")
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ConfigError(f"{self.folder / 'ca.key'} is of another kind; make a new authority")
        return key

    @cached_property
    def _signing(self) -> ed25519.Ed25519PrivateKey:
        key = self._load(SIGNING)
        if not isinstance(key, ed25519.Ed25519PrivateKey):
            raise ConfigError(f"{self.folder / SIGNING} is of another kind; make a new authority")
        return key

    def _load(self, file: str) -> object:
        path, phrase = self.folder / file, _passphrase(self._environment)
        try:
            data = path.read_bytes()
            return serialization.load_pem_private_key(data, password=phrase if b"ENCRYPTED" in data else None)
        except (OSError, ValueError, TypeError) as err:
            raise ConfigError(
                f"{path} cannot be used ({err}); bring it here, and give its passphrase, if it has one, as "
                f"{PASSPHRASE_VARIABLE}"
            ) from err

    @property
    def public_key(self) -> bytes:
        """The key that checks what `sign` signs."""
        return self._public(SIGNING)

    @property
    def next_public_key(self) -> bytes:
        """The key that signs after the next rotation; made here for an authority of an earlier release."""
        if not self._public_file(NEXT_SIGNING).exists() and not (self.folder / NEXT_SIGNING).exists():
            _make_signing_key(self.folder / NEXT_SIGNING, _passphrase(self._environment))
        return self._public(NEXT_SIGNING)

    def _public_file(self, file: str) -> Path:
        return (self.folder / file).with_suffix(".pub")

    def _public(self, file: str) -> bytes:
        kept = self._public_file(file)
        if kept.exists():
            return bytes.fromhex(kept.read_text().strip())
        key = self._load(file)
        if not isinstance(key, ed25519.Ed25519PrivateKey):
            raise ConfigError(f"{self.folder / file} is of another kind; make a new authority")
        return key.public_key().public_bytes_raw()

    def rotate(self) -> None:
        """Sign with the next key from now on, and make another one for the rotation after that."""
        next_public, phrase = self.next_public_key, _passphrase(self._environment)
        # Read first: a key that lies elsewhere, or whose passphrase is wrong, leaves all as it was.
        self._load(NEXT_SIGNING)
        replace_file(self._public_file(SIGNING), next_public.hex().encode())
        (self.folder / NEXT_SIGNING).replace(self.folder / SIGNING)
        _make_signing_key(self.folder / NEXT_SIGNING, phrase)
        self.__dict__.pop("_signing", None)

    def check_signing(self) -> None:
        """Raise ConfigError unless the key that signs tasks is here and can be opened."""
        _ = self._signing

    def sign(self, message: bytes) -> bytes:
        """Ed25519 signature of a message, for `codec.encode`."""
        return self._signing.sign(message)

    def issue_device(self, device: str, folder: Path) -> Credentials:
        """Key and certificate of a device or of the server: its common name is the user of the broker's access list."""
        return self._issue(topics.check_name(device, what="device"), folder, hosts=())

    def issue_broker(self, hosts: Sequence[str], folder: Path) -> Credentials:
        """Key and certificate of a broker, good for these host names and addresses."""
        if not hosts:
            raise ConfigError("a broker's certificate needs at least one host name or address; give --host")
        return self._issue(BROKER_NAME, folder, hosts=hosts)

    def _issue(self, name: str, folder: Path, *, hosts: Sequence[str]) -> Credentials:
        folder.mkdir(parents=True, exist_ok=True)
        key = ec.generate_private_key(ec.SECP256R1())
        cert = self.certify(name, key.public_key(), hosts=hosts)
        identity = Credentials(folder / "cert.pem", folder / "key.pem")
        write_private(identity.key, _pem(key, None))
        replace_file(identity.cert, cert.public_bytes(serialization.Encoding.PEM))
        return identity

    def certify(self, name: str, key: ec.EllipticCurvePublicKey, *, hosts: Sequence[str] = ()) -> x509.Certificate:
        """A new certificate for a public key; those that the name has stay good until they expire or are revoked."""
        # A broker's certificate lets nobody in as a device, nor the other way round.
        purpose = ExtendedKeyUsageOID.SERVER_AUTH if hosts else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = (
            _builder(_name(name), self._cert.subject, key, days=CERTIFICATE_DAYS)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        if hosts:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False
            )
        cert = builder.sign(self._key, hashes.SHA256())
        self._note(name, cert)
        return cert

    def _note(self, name: str, cert: x509.Certificate) -> None:
        """Remember a certificate: to revoke it, and to know the key that its holder signs with."""
        note_issued(self.folder, name, cert.serial_number)
        kept = self.folder / CERTIFICATES / name / f"{cert.serial_number:x}.pem"
        kept.parent.mkdir(parents=True, exist_ok=True)
        replace_file(kept, cert.public_bytes(serialization.Encoding.PEM))

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


def _make_signing_key(path: Path, phrase: bytes | None) -> None:
    """A key that signs tasks, and beside it what may be known of it."""
    key = ed25519.Ed25519PrivateKey.generate()
    write_private(path, _pem(key, phrase))
    replace_file(path.with_suffix(".pub"), key.public_key().public_bytes_raw().hex().encode())


def _passphrase(environment: Mapping[str, str]) -> bytes | None:
    phrase = environment.get(PASSPHRASE_VARIABLE)
    return phrase.encode() if phrase else None


def _pem(key: ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey, phrase: bytes | None) -> bytes:
    kept: serialization.KeySerializationEncryption = (
        serialization.NoEncryption() if phrase is None else serialization.BestAvailableEncryption(phrase)
    )
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, kept)


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
