"""The broker that a server starts by itself for its fleet, and the line that brings a device to it."""

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509

from fedwright.protocol.address import DEVICE_USER, PASSWORD_VARIABLE, PORTS, Login, outward_host
from fedwright.protocol.errors import ConfigError, LinkError
from fedwright.protocol.link.broker import Broker, PortTaken, is_free
from fedwright.protocol.link.passwords import kept_passwords
from fedwright.protocol.link.security import SERVER_NAME, BrokerTls, TlsFiles
from fedwright.protocol.support.files import lock_folder, write_private
from fedwright.server_runtime.config import FleetSection
from fedwright.server_runtime.fleet.revocation import CRL, LOOK_S
from fedwright.server_runtime.fleet.trust import Authority, enroll_server

log = logging.getLogger(__name__)

PORTS_TRIED = 20


@dataclass(frozen=True)
class OwnBroker:
    """A broker that runs, how the server itself gets in, and how a device does.

    summary: what was done, for screen and log. join: the line for a device; it may hold a password, so it is for a
    person's screen only. join_file: where its owner finds it again; None when it holds no secret.
    """

    url: str
    summary: str
    join: str = field(repr=False)
    join_file: Path | None
    login: Login | None = None
    tls: TlsFiles | None = None


def passwords_folder(fleet: str) -> Path:
    """Where the passwords of a fleet's broker stay, whatever becomes of its runs."""
    return Path.home() / ".fedwright" / "brokers" / fleet


@contextmanager
def own_broker(fleet: FleetSection, folder: Path) -> Iterator[OwnBroker]:
    """Run a broker for the network while the block lasts; `folder` holds its state."""
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        lock = lock_folder(folder)
        if lock is None:
            raise ConfigError(
                f"another server is at work on the run in {folder.parent}; stop it, or give this run another name"
            )
        stack.enter_context(lock)
        start = _with_passwords if fleet.trust is None else _with_certificates
        yield start(fleet, folder, stack)


def _with_passwords(fleet: FleetSection, folder: Path, stack: ExitStack) -> OwnBroker:
    passwords = kept_passwords(passwords_folder(fleet.name))
    port, taken = _choose_port(fleet.port, folder / "port")
    broker = _start(Broker(port=port, folder=folder, passwords=passwords), stack)
    url = f"mqtt://{outward_host()}:{port}"
    joined = "" if fleet.name == FleetSection().name else f" --fleet {fleet.name}"
    join = (
        f"{PASSWORD_VARIABLE}={passwords.users[DEVICE_USER]} "
        f"fedwright device run --broker {url}{joined} --data npz:data.npz"
    )
    write_private(folder / "join", join + "\n")
    return OwnBroker(
        url=broker.url,
        summary=f"{taken}started {broker.kind} for the network at {url}; it asks for a password and ends with the run",
        join=join,
        join_file=folder / "join",
        login=Login(SERVER_NAME, passwords.users[SERVER_NAME]),
    )


def _with_certificates(fleet: FleetSection, folder: Path, stack: ExitStack) -> OwnBroker:
    """The broker that `fedwright server enroll` made the files for; devices start from the bundles it made."""
    trust = Path(fleet.trust or "")
    authority, files = Authority(trust), trust / "broker"
    tls = BrokerTls(authority.ca, files / "cert.pem", files / "key.pem", acl=files / "access.list", crl=files / CRL)
    port = fleet.port or _enrolled_port(files / "mosquitto.conf")
    broker = _start(Broker(port=port, folder=folder, tls=tls), stack)
    stack.enter_context(_reloading(broker, [tls.acl, files / CRL]))
    return OwnBroker(
        url=f"mqtts://{_certified_host(tls.cert)}:{port}",
        summary=f"started {broker.kind} for the network on port {port}; it lets in who has a certificate of {trust} "
        f"and ends with the run; copy a folder of {trust / 'devices'} to each device",
        join="fedwright device run --bundle FOLDER --data npz:data.npz",
        join_file=None,
        tls=enroll_server(authority),
    )


@contextmanager
def _reloading(broker: Broker, files: Sequence[Path]) -> Iterator[None]:
    """Make the broker read its lists again when somebody was enrolled or revoked."""
    over = threading.Event()

    def watch() -> None:
        seen = _changed_ns(files)
        while not over.wait(LOOK_S):
            now = _changed_ns(files)
            if now != seen:
                seen = now
                log.info("the broker reads its lists of who may join again")
                broker.reload()

    thread = threading.Thread(target=watch, name="broker-lists", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _changed_ns(files: Sequence[Path]) -> list[int]:
    return [file.stat().st_mtime_ns if file.exists() else 0 for file in files]


def _start(broker: Broker, stack: ExitStack) -> Broker:
    try:
        return stack.enter_context(broker)
    except PortTaken as err:
        raise LinkError(f"{str(err).partition(';')[0]}; stop what listens there or set another fleet.port") from err


def _choose_port(wanted: int | None, kept: Path) -> tuple[int, str]:
    """The wanted port, else the one of last time, else the first free one; and what to say when it is another."""
    if wanted is not None:
        return wanted, ""
    first = PORTS["mqtt"]
    usual = int(kept.read_text()) if kept.exists() else first
    ports = (usual, *range(first, first + PORTS_TRIED))
    port = next((port for port in ports if is_free(port, everywhere=True)), None)
    if port is None:
        raise LinkError(f"ports {first} to {ports[-1]} are all in use; stop what listens there or set fleet.port")
    kept.write_text(f"{port}\n")
    return port, "" if port == usual else f"port {usual} is in use by another program, so "


def _enrolled_port(config: Path) -> int:
    try:
        return next(int(line.split()[1]) for line in config.read_text().splitlines() if line.startswith("listener "))
    except (OSError, StopIteration, ValueError) as err:
        raise ConfigError(f"{config} names no port; make it with `fedwright server enroll` or set fleet.port") from err


def _certified_host(cert: Path) -> str:
    """A name of this machine that the broker's certificate is good for."""
    names = x509.load_pem_x509_certificate(cert.read_bytes()).extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    hosts = [str(name.value) for name in names.value]
    return "localhost" if "localhost" in hosts else hosts[0]
