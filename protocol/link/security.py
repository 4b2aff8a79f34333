"""Who may connect and speak where: the broker's TLS listener and access list, and the bundle a device starts from."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from fedwright.protocol import topics
from fedwright.protocol.crypto.device_signing import sign_with
from fedwright.protocol.crypto.signing import KEY_BYTES, verify
from fedwright.protocol.errors import ConfigError
from fedwright.protocol.field_types import Id

# So long before a certificate ends everybody who looks is told.
WARN_DAYS = 60
SERVER_NAME = "server"
"""Common name of the server's own certificate; no device may have it."""
SERVER_RIGHTS = "topic readwrite fedwright/"


@dataclass(frozen=True)
class TlsFiles:
    """PEM files for mqtts: the authority that signed the broker, and this side's certificate and key."""

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None


@dataclass(frozen=True)
class BrokerTls:
    """Files of a broker that lets in nobody without a certificate of its authority."""

    ca: Path
    cert: Path
    key: Path
    acl: Path
    crl: Path | None = None
    """Certificates that are void."""

    def listener(self, port: int, host: str) -> list[str]:
        """Lines of a mosquitto configuration; the name in a certificate is the user of the access list.

        It is the client id, too, whatever a client calls itself: nobody throws out another one or takes its session,
        and one certificate has one connection and one queue at the broker.
        """
        return [
            f"listener {port} {host}",
            f"cafile {self.ca.resolve()}",
            f"certfile {self.cert.resolve()}",
            f"keyfile {self.key.resolve()}",
            "tls_version tlsv1.2",
            "require_certificate true",
            "use_identity_as_username true",
            "use_username_as_clientid true",
            "allow_anonymous false",
            f"acl_file {self.acl.resolve()}",
            *([f"crlfile {self.crl.resolve()}"] if self.crl else []),
        ]


def access_list(
    fleets: Sequence[str], edges: Mapping[str, Sequence[str]] | None = None, *, revoked: Sequence[str] = ()
) -> str:
    """A mosquitto access list: a device writes only its own `up` topic and reads only its own `down` and `shared`.

    To measure its link it may speak to itself under its own probe topic.
    edges: the devices of each edge server. To the fleet an edge is a device; it rules the fleet of its own name, where
    its devices, and only they, may speak each under its own name. revoked: those who may nothing any more, also in a
    connection that still stands.
    """
    lines = [f"user {SERVER_NAME}", *(f"{SERVER_RIGHTS}{fleet}/#" for fleet in fleets)]
    for fleet in fleets:
        topics.check_name(fleet, what="fleet")
        lines += [
            f"pattern write {topics.up(fleet, '%u')}",
            f"pattern read {topics.down(fleet, '%u')}",
            f"pattern read {topics.shared(fleet)}",
        ]
    lines.append(f"pattern readwrite {topics.probe('%u')}")
    for name in revoked:
        lines += [f"user {topics.check_name(name, what='device')}", "topic deny #"]
    for edge, devices in sorted((edges or {}).items()):
        if edge in revoked:
            continue
        lines += [f"user {topics.check_name(edge, what='edge')}", f"topic readwrite fedwright/{edge}/#"]
        for device in sorted(set(devices) - set(revoked)):
            lines += [
                f"user {topics.check_name(device, what='device')}",
                f"topic write {topics.up(edge, device)}",
                f"topic read {topics.down(edge, device)}",
                f"topic read {topics.shared(edge)}",
            ]
    return "\n".join(lines) + "\n"


def fleets_of(text: str) -> list[str]:
    """The fleets that an access list was made for."""
    _, _, own = text.partition(f"user {SERVER_NAME}\n")
    lines = itertools.takewhile(lambda line: line.startswith(SERVER_RIGHTS), own.splitlines())
    return [line.removeprefix(SERVER_RIGHTS).removesuffix("/#") for line in lines]


class BundleInfo(msgspec.Struct, frozen=True):
    """What a device must know besides its certificate: `bundle.json`."""

    device: Id
    fleet: Id
    broker: str
    server_key: str
    """Public Ed25519 key that signs tasks, in hexadecimal."""
    edges: list[Id] = []
    """Edge servers to join instead of the fleet's own, in this order."""
    next_key: str = ""
    """A second key that may sign tasks, while one takes the place of the other."""
    expires_s: float = 0.0
    """When the certificate ends; 0 in bundles of earlier releases."""


@dataclass(frozen=True)
class Bundle:
    """All that an enrolled device starts from."""

    info: BundleInfo
    ca: Path
    cert: Path
    key: Path

    def tls(self) -> TlsFiles:
        """What `connect` takes."""
        return TlsFiles(self.ca, self.cert, self.key)

    def verify(self, message: bytes, signature: bytes) -> bool:
        """Whether the server this device was enrolled with signed a message."""
        keys = [key for key in (self.info.server_key, self.info.next_key) if key]
        return any(verify(bytes.fromhex(key), message, signature) for key in keys)

    def ending(self, now_s: float) -> str:
        """What to know of a certificate that ends soon or has ended; empty while there is time."""
        left_days = (self.info.expires_s - now_s) / 86_400
        if not self.info.expires_s or left_days >= WARN_DAYS:
            return ""
        when = f"ends in {left_days:.0f} days" if left_days >= 0 else f"has ended {-left_days:.0f} days ago"
        return f"the certificate of {self.info.device} {when}; on the server: fedwright server renew {self.info.device}"

    def sign(self, message: bytes) -> bytes:
        """This device's signature."""
        return sign_with(self.key, message)


def read_bundle(folder: Path) -> Bundle:
    """Read the folder that enrolment made; ConfigError names what is missing or wrong in it."""
    files = {name: folder / name for name in ("bundle.json", "ca.pem", "cert.pem", "key.pem")}
    for file in files.values():
        if not file.is_file():
            raise ConfigError(f"{file} is missing; copy the whole folder that `fedwright server enroll` made")
    try:
        info = msgspec.json.decode(files["bundle.json"].read_bytes(), type=BundleInfo)
        key, _ = bytes.fromhex(info.server_key), bytes.fromhex(info.next_key)
    except (msgspec.MsgspecError, ValueError, RecursionError) as err:
        raise ConfigError(f"{files['bundle.json']} cannot be read ({err}); enroll the device again") from err
    if len(key) != KEY_BYTES:
        raise ConfigError(f"{files['bundle.json']} holds a key of {len(key)} bytes; enroll the device again")
    return Bundle(info, files["ca.pem"], files["cert.pem"], files["key.pem"])
