"""Where a broker listens and how one gets in: its URL, and a password that is never shown, logged or stored with it."""

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from fedwright.protocol.errors import ConfigError

PORTS = {"mqtt": 1883, "mqtts": 8883}
PASSWORD_VARIABLE = "FEDWRIGHT_BROKER_PASSWORD"
USER_VARIABLE = "FEDWRIGHT_BROKER_USER"
DEVICE_USER = "device"
EDGE_USER = "edge"
HIDDEN = "***"
# Of one cluster, in one address.
MOST_NODES = 16
# Up to the last @ of the word: a password may hold one.
_PASSWORD = re.compile(r"([\w+.-]+://[^\s\"'/@:]*):[^\s\"']*@")
# Of a documentation network; connecting a datagram socket sends nothing.
_ELSEWHERE = ("198.51.100.1", 9)


@dataclass(frozen=True)
class Login:
    """As whom to connect, unless the URL says it; MQTT takes no password without a user."""

    user: str
    password: str = field(repr=False)


@dataclass(frozen=True)
class Address:
    """Where a broker listens, and as whom to connect; written out it hides the password.

    others: further nodes of the same broker, to go to in turn when one is gone.
    """

    host: str
    port: int
    secure: bool
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    others: tuple[tuple[str, int], ...] = ()

    @property
    def nodes(self) -> tuple[tuple[str, int], ...]:
        """Host and port of every node, in the order in which they are tried."""
        return ((self.host, self.port), *self.others)

    def __str__(self) -> str:
        return self._url(None if self.password is None else HIDDEN)

    def plain(self) -> str:
        """The URL without the password."""
        return self._url(None)

    def _url(self, password: str | None) -> str:
        login = "" if self.user is None else quote(self.user, safe="")
        if password is not None:
            login += f":{password}"
        nodes = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.nodes)
        return f"{'mqtts' if self.secure else 'mqtt'}://{login + '@' if login else ''}{nodes}"


def parse_url(url: str) -> Address:
    """Read mqtt://[user[:password]@]host[:port][,host[:port]…] or the same with mqtts."""
    scheme, _, rest = url.partition("://")
    place = rest.partition("/")[0]
    login, at, hosts = place.rpartition("@")
    nodes = []
    try:
        for host in hosts.split(","):
            parts = urlsplit(f"{scheme}://{login}{at}{host}")
            nodes.append((parts.hostname, PORTS.get(parts.scheme, 0) if parts.port is None else parts.port))
    except ValueError as err:
        raise ConfigError(f"broker address {mask(url)!r} cannot be read ({err}); write mqtt://host:port") from err
    found = [(host, port) for host, port in nodes if host and port]
    if parts.scheme not in PORTS or len(found) != len(nodes) or len(found) > MOST_NODES:
        raise ConfigError(f"broker address {mask(url)!r} must be mqtt://host:port or mqtts://host:port")
    user, password = (None if text is None else unquote(text) for text in (parts.username, parts.password))
    return Address(
        *found[0],
        parts.scheme == "mqtts",
        user or None,
        # A config that is kept has its password hidden.
        None if password in ("", HIDDEN) else password,
        tuple(found[1:]),
    )


def mask(text: str) -> str:
    """The text with the password of every broker address in it hidden."""
    return _PASSWORD.sub(rf"\1:{HIDDEN}@", text)


def split_password(url: str) -> tuple[str, str | None]:
    """The URL without its password, and the password."""
    hidden = mask(url)
    if hidden == url and f":{HIDDEN}@" not in url:
        return url, None
    address = parse_url(url)
    return address.plain(), address.password


def find_login(
    given: str | None, file: Path | None = None, *, user: str, environment: Mapping[str, str] = os.environ
) -> Login | None:
    """A login by the file's password, else the URL's, else the environment's; `user` unless one is named there."""
    password = given or environment.get(PASSWORD_VARIABLE) if file is None else _read(file)
    return Login(environment.get(USER_VARIABLE) or user, password) if password else None


def _read(file: Path) -> str:
    try:
        password = file.expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as err:
        reason = err.strerror if isinstance(err, OSError) else "it is not text"
        raise ConfigError(f"the password file {file} cannot be read ({reason}); check its path and rights") from err
    if not password or "\n" in password:
        raise ConfigError(f"the password file {file} must hold one line, the password")
    return password


def with_login(address: Address, login: Login | None) -> Address:
    """The address with a login for where the URL names none."""
    if login is None:
        return address
    return replace(address, user=address.user or login.user, password=address.password or login.password)


def outward_host() -> str:
    """The address under which others of the network reach this machine; its name, or localhost, without a network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_ELSEWHERE)
            return str(probe.getsockname()[0])
        except OSError:
            return _interface_address() or socket.gethostname() or "localhost"


def _interface_address() -> str | None:
    """An address of this machine in a network that leads nowhere else, such as boards behind one switch."""
    # The doctor must work where this is what is missing.
    import psutil

    states = psutil.net_if_stats()
    for name, addresses in psutil.net_if_addrs().items():
        for each in addresses:
            if each.family == socket.AF_INET and states[name].isup and not each.address.startswith("127."):
                return str(each.address)
    return None
