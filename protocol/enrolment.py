"""How a device that has made its own key asks for a certificate: what is said over HTTPS, or carried as files.

A token is good for one device, once: `pi-01.SECRET.MARK`. The mark is that of the authority, so that a device knows
whom it tells the secret.
"""

import hashlib
from typing import Annotated, NamedTuple, TypeVar

import msgspec
from msgspec import Meta

from fedwright.protocol.errors import ConfigError
from fedwright.protocol.field_types import Id
from fedwright.protocol.link.security import BundleInfo
from fedwright.protocol.support.unreadable import UNREADABLE

ENROLL_PORT = 8884
CA_PATH, ENROLL_PATH = "/ca.pem", "/enroll"
MAX_BYTES = 64 * 1024

Pem = Annotated[str, Meta(max_length=16_384)]


class EnrolmentRequest(msgspec.Struct, frozen=True):
    """Device → authority: certify the key of this signing request; without a token it is carried by hand."""

    device: Id
    csr: Pem
    token: Annotated[str, Meta(max_length=400)] = ""


class EnrolmentReply(msgspec.Struct, frozen=True):
    """Authority → device: all of its bundle but the key, which never left it."""

    info: BundleInfo
    ca: Pem
    cert: Pem


Record = TypeVar("Record", EnrolmentRequest, EnrolmentReply)


class Token(NamedTuple):
    """A token in its parts."""

    device: str
    secret: str
    mark: str

    def text(self) -> str:
        """As it is typed."""
        return ".".join(self)


def read_token(text: str) -> Token:
    """The parts of a token; ConfigError when it has others."""
    parts = text.strip().rsplit(".", 2)
    if len(parts) != 3 or not all(parts):
        raise ConfigError("the token is not of the form NAME.SECRET.MARK; copy the whole that the server printed")
    return Token(*parts)


def mark_of(ca: bytes) -> str:
    """What a token says of the authority's certificate, enough that nobody makes another one with the same mark."""
    return hashlib.sha256(ca).hexdigest()[:32]


def read_record(data: bytes, kind: type[Record], *, what: str) -> Record:
    """A request or a reply from its JSON."""
    try:
        return msgspec.json.decode(data, type=kind)
    except UNREADABLE as err:
        raise ConfigError(f"{what} cannot be read ({err}); make it again") from err
