"""Who may join: bundles for devices and edges, the broker's files, and who was shut out again."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
from cryptography import x509

from fedwright.protocol import topics
from fedwright.protocol.errors import ConfigError
from fedwright.protocol.link.broker import mosquitto_config
from fedwright.protocol.link.security import SERVER_NAME, BrokerTls, BundleInfo, TlsFiles, access_list, fleets_of
from fedwright.protocol.support.files import replace_file
from fedwright.protocol.support.unreadable import UNREADABLE
from fedwright.server_runtime.fleet.authority import BROKER_NAME, Authority
from fedwright.server_runtime.fleet.device_keys import certificates_of, void_serials
from fedwright.server_runtime.fleet.revocation import read_issued, read_revoked, write_revoked

__all__ = ["Authority"]

EDGES = "edges.json"


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
    topics.check_name(fleet, what="fleet")
    check_new_device(authority, device, edges)
    target = folder or authority.folder / "devices" / device
    return _bundle(authority, device, fleet=fleet, broker=broker, target=target, edges=edges)


def check_new_device(authority: Authority, device: str, edges: Sequence[str] = ()) -> None:
    """Raise ConfigError for a name that is taken: by the server, the broker, an edge or an enrolled device."""
    topics.check_name(device, what="device")
    if device in (SERVER_NAME, BROKER_NAME):
        raise ConfigError(f"device {device!r} would have the {device}'s name; choose another")
    if device in (*edges, *read_edges(authority.folder)):
        raise ConfigError(f"device {device!r} would have the name of an edge; choose another")
    void = void_serials(authority.folder)
    held = [cert for cert in certificates_of(authority.folder, device) if cert.serial_number not in void]
    if held and device not in read_revoked(authority.folder):
        raise ConfigError(
            f"{authority.folder} already holds a bundle for {device}, or a certificate for its own key; use that one, "
            f"or make it void first with `fedwright server revoke {device}`"
        )


def admit(authority: Authority, device: str, *, fleet: str, edges: Sequence[str] = ()) -> None:
    """Open the doors for a device that has a new certificate: to its fleet, to its edges, and where it was shut out."""
    known = read_edges(authority.folder)
    for edge in edges:
        known[edge] = sorted({*known.get(edge, []), device})
    if edges:
        replace_file(authority.folder / EDGES, msgspec.json.format(msgspec.json.encode(known, order="sorted")))
    revoked = set(read_revoked(authority.folder))
    if device in revoked:
        write_revoked(authority.folder, revoked - {device})
    if (authority.folder / "broker").exists():
        write_access(authority, fleet=fleet)


def make_info(
    authority: Authority, device: str, cert: x509.Certificate, *, fleet: str, broker: str, edges: Sequence[str] = ()
) -> BundleInfo:
    """What a device must know besides its certificate."""
    return BundleInfo(
        device=device,
        fleet=fleet,
        broker=broker,
        server_key=authority.public_key.hex(),
        edges=list(edges),
        next_key=authority.next_public_key.hex(),
        expires_s=cert.not_valid_after_utc.timestamp(),
    )


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


def write_access(authority: Authority, *, fleet: str | None = None) -> Path:
    """The broker's access list as the enrolled edges and devices need it; a further fleet is added to those it has."""
    acl = authority.folder / "broker" / "access.list"
    fleets = fleets_of(acl.read_text()) if acl.exists() else []
    if fleet is not None and fleet not in fleets:
        fleets.append(fleet)
    text = access_list(fleets, read_edges(authority.folder), revoked=read_revoked(authority.folder))
    if not acl.exists() or acl.read_text() != text:
        replace_file(acl, text.encode())
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
    write_access(authority)


def _serials(folder: Path, name: str) -> set[int]:
    return {cert.serial_number for cert in certificates_of(folder, name)} | read_issued(folder, name)


def _bundle(authority: Authority, device: str, *, fleet: str, broker: str, target: Path, edges: Sequence[str]) -> Path:
    if (target / "bundle.json").exists() and device not in read_revoked(authority.folder):
        raise ConfigError(
            f"{target} already holds a bundle for {device}; copy that one, or make it void first with "
            f"`fedwright server revoke {device}`"
        )
    made = authority.issue_device(device, target)
    admit(authority, device, fleet=fleet, edges=edges)
    (target / "ca.pem").write_bytes(authority.ca.read_bytes())
    cert = x509.load_pem_x509_certificate(made.cert.read_bytes())
    info = make_info(authority, device, cert, fleet=fleet, broker=broker, edges=edges)
    replace_file(target / "bundle.json", msgspec.json.format(msgspec.json.encode(info)))
    return target


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
