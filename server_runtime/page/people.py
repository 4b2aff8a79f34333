"""Who may look at the page and who may act on it: a file of people, their tokens and certificates, and their sessions.

The file keeps the SHA-256 of each token, which is random and long, so that a plain hash does. A session is signed with
that hash: it lasts over restarts of the page and ends when its person leaves the file.
"""

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedwright.protocol.errors import ConfigError
from fedwright.protocol.support.files import write_private
from fedwright.protocol.support.settings import from_dict
from fedwright.protocol.topics import check_name
from fedwright.server_runtime.config_sections.reading import parse_toml, read_text

Role = Literal["look", "act"]
SESSION_S = 12 * 3600.0
TOKEN_BYTES = 32


@dataclass(frozen=True)
class Person:
    """Somebody who may open the page; certificate: the common name of theirs."""

    name: str = ""
    role: Role = "look"
    token_sha256: str = ""
    certificate: str = ""


# On a loopback address without a file of people: whoever may start programs on this machine.
LOCAL = Person("local", "act")


def read_people(path: Path) -> dict[str, Person]:
    """The people of a file, by name."""
    found = {}
    for name, entry in parse_toml(read_text(path), where=path.name).items():
        check_name(name, what=f"{path.name}: name")
        if not isinstance(entry, Mapping) or "name" in entry:
            raise ConfigError(f"{path.name} [{name}] must be a table with role, and token_sha256 or certificate")
        found[name] = from_dict(Person, {**entry, "name": name}, where=f"{path.name} [{name}]")
        if not found[name].token_sha256 and not found[name].certificate:
            raise ConfigError(f"{path.name} [{name}] has neither token_sha256 nor certificate; nobody could be {name}")
    return found


def allow(path: Path, name: str, role: Role, *, certificate: str = "") -> str:
    """Let somebody in from now on; returns their new token, which is nowhere else, or nothing for a certificate."""
    check_name(name, what="name")
    people = read_people(path) if path.exists() else {}
    token = "" if certificate else secrets.token_urlsafe(TOKEN_BYTES)
    people[name] = Person(name, role, _hashed(token) if token else "", certificate)
    lines = ["# Who may open the page; made by `fedwright page --allow`.\n"]
    for one in people.values():
        lines.append(f'\n["{one.name}"]\nrole = "{one.role}"\n')
        known = {"token_sha256": one.token_sha256, "certificate": one.certificate}
        lines += [f"{key} = {_quoted(value)}\n" for key, value in known.items() if value]
    write_private(path, "".join(lines))
    return token


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _hashed(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


class People:
    """Tells who somebody is; the file is read again when it changes, so that nobody stays who was taken out of it."""

    def __init__(self, path: Path | None, *, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock
        self._stamp: tuple[int, int] = (0, 0)
        self._people: dict[str, Person] = {}
        # For those who need no token; a page that starts anew gives out another.
        self._key = secrets.token_bytes(TOKEN_BYTES)
        self._read()

    @property
    def is_open(self) -> bool:
        """Whether everybody who reaches the page may act."""
        return self._path is None

    def by_token(self, token: str) -> Person | None:
        """Whose token it is."""
        self._read()
        given = _hashed(token)
        for person in self._people.values():
            if person.token_sha256 and hmac.compare_digest(person.token_sha256, given):
                return person
        return None

    def by_certificate(self, common_name: str) -> Person | None:
        """Whose certificate has this name; the issuer has been checked by then."""
        self._read()
        return next((one for one in self._people.values() if one.certificate == common_name != ""), None)

    def open_session(self, person: Person) -> str:
        """A cookie that says who somebody is, for some hours."""
        text = f"{person.name}.{int(self._clock() + SESSION_S)}"
        return f"{text}.{self._sign(person, text)}"

    def by_session(self, cookie: str) -> Person | None:
        """Who has this cookie; None when it is over, forged, or its person was taken out."""
        self._read()
        text, _, sign = cookie.rpartition(".")
        name, _, until = text.rpartition(".")
        person = self._people.get(name)
        if person is None or not person.token_sha256 or not until.isdecimal() or len(until) > 12:
            return None
        fits = hmac.compare_digest(self._sign(person, text), sign)
        return person if fits and int(until) > self._clock() else None

    def word(self, person: Person) -> str:
        """What a page of ours sends along with an order and nobody else's can know."""
        return self._sign(person, "order")

    def _sign(self, person: Person, text: str) -> str:
        key = person.token_sha256.encode() if person.token_sha256 else self._key
        return hmac.new(key, f"fedwright page {text}".encode(), hashlib.sha256).hexdigest()

    def _read(self) -> None:
        if self._path is None:
            return
        found = self._path.stat()
        stamp = (found.st_mtime_ns, found.st_size)
        if stamp != self._stamp:
            self._people, self._stamp = read_people(self._path), stamp
