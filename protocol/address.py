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
    """Where a broker listens, and as whom to connect; written out it hides the password."""

    host: str
    port: int
    secure: bool
    user: str | None = None
    password: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return self._url(None if self.password is None else HIDDEN)

    def plain(self) -> str:
        """The URL without the password."""
        return self._url(None)

    def _url(self, password: str | None) -> str:
        login = "" if self.user is None else quote(self.user, safe="")
        if password is not None:
            login += f":{password}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'mqtts' if self.secure else 'mqtt'}://{login + '@' if login else ''}{host}:{self.port}"


def parse_url(url: str) -> Address:
    """Read mqtt://[user[:password]@]host[:port] or the same with mqtts."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as err:
        raise ConfigError(f"broker address {mask(url)!r} cannot be read ({err}); write mqtt://host:port") from err
    if parts.scheme not in PORTS or not parts.hostname or port == 0:
        raise ConfigError(f"broker address {mask(url)!r} must be mqtt://host:port or mqtts://host:port")
    user, password = (None if text is None else unquote(text) for text in (parts.username, parts.password))
    return Address(
        parts.hostname,
        port or PORTS[parts.scheme],
        parts.scheme == "mqtts",
        user or None,
        # A config that is kept has its password hidden.
        None if password in ("", HIDDEN) else password,
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
