"""Who takes part in a sum, with which keys, on whose word: what every device checks before it gives away anything."""

import datetime
import hashlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta, Struct

from fedwright.protocol.crypto.certificates import unreadable_certificate
from fedwright.protocol.crypto.device_signing import is_signed_by
from fedwright.protocol.errors import ProtocolError
from fedwright.protocol.field_types import Id, Key

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.x509 import Certificate

MOST_MEMBERS = 1000

Certified = Callable[[str, bytes, bytes, bytes], None]
"""Raises ProtocolError unless a device (its name, its certificate) signed a message (message, signature)."""


class Member(Struct, frozen=True):
    """One device's keys for one sum; certificate (DER) and signature are empty where nobody is enrolled.

    mask_key: pairs agree on their mask with it. share_key: shares are sealed with it. session: of the sum. work:
    what it trained, which must be the same for all; a sum with changes that are known would tell the others.
    """

    device: Id
    session: Id
    mask_key: Key
    share_key: Key
    certificate: Annotated[bytes, Meta(max_length=8192)] = b""
    signature: Annotated[bytes, Meta(max_length=64)] = b""
    work: Annotated[bytes, Meta(max_length=32)] = b""

    def word(self) -> bytes:
        """What its signature is of."""
        parts = ("fedwright sum keys", self.session, self.device, self.mask_key, self.share_key, self.work)
        return msgspec.msgpack.encode(parts)


def pack_roster(members: Sequence[Member]) -> bytes:
    """A roster as it travels; the same bytes for the same members."""
    return msgspec.msgpack.encode(sorted(members, key=lambda member: member.device))


def read_roster(data: bytes) -> dict[str, Member]:
    """The members by name; ProtocolError for one that cannot be read or that has somebody or something twice."""
    try:
        members = msgspec.msgpack.decode(data, type=list[Member])
    except (msgspec.MsgspecError, RecursionError) as err:
        raise ProtocolError(f"the roster of a sum cannot be read ({err})") from err
    if not 1 <= len(members) <= MOST_MEMBERS or pack_roster(members) != data:
        raise ProtocolError(f"the roster of a sum has {len(members)} members, or not in their order")
    keys = [key for member in members for key in (member.mask_key, member.share_key)]
    if len({member.device for member in members}) < len(members) or len(set(keys)) < len(keys):
        raise ProtocolError("a device or a key is twice in the roster of a sum")
    if len({member.session for member in members}) > 1:
        raise ProtocolError("the roster of a sum has keys that were made for another one")
    if len({member.work for member in members}) > 1:
        raise ProtocolError("the members of a sum have trained different things")
    return {member.device: member for member in members}


def digest_of(roster: bytes) -> bytes:
    """What everything in a sum is bound to."""
    return hashlib.sha256(b"fedwright roster" + roster).digest()


def masked_word(digest: bytes, sharers: Sequence[str]) -> bytes:
    """What a device signs with its masked part: with whom it shares masks."""
    return msgspec.msgpack.encode(("fedwright sum masked", digest, sorted(sharers)))


def agreed_word(digest: bytes, sharers: Sequence[str], present: Sequence[str]) -> bytes:
    """What a device signs once in a sum: over whom it is opened."""
    return msgspec.msgpack.encode(("fedwright sum agreed", digest, sorted(sharers), sorted(present)))


class Certificates:
    """Checks signatures of members by certificates of one authority; each certificate is looked at once."""

    def __init__(self, ca_pem: bytes, *, now: Callable[[], datetime.datetime] | None = None) -> None:
        from cryptography import x509

        self._ca = x509.load_pem_x509_certificate(ca_pem)
        self._now = now or (lambda: datetime.datetime.now(datetime.timezone.utc))
        self._good: dict[tuple[str, bytes], tuple[Certificate, EllipticCurvePublicKey]] = {}

    def check(self, device: str, certificate: bytes, message: bytes, signature: bytes) -> None:
        """Raise ProtocolError unless the device of this name signed the message."""
        if not certificate or not signature:
            raise ProtocolError(f"{device} gives no certificate, so that nobody knows whether it is one; enroll it")
        known = self._good.get((device, certificate))
        if known is None:
            known = self._good[device, certificate] = self._checked(device, certificate)
        now = self._now()
        if not known[0].not_valid_before_utc <= now <= known[0].not_valid_after_utc:
            raise ProtocolError(f"the certificate of {device} is not good at this time; renew it")
        if not is_signed_by(known[1], message, signature):
            raise ProtocolError(f"{device} has not signed what is said in its name")

    def _checked(self, device: str, data: bytes) -> "tuple[Certificate, EllipticCurvePublicKey]":
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
        from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

        try:
            cert = x509.load_der_x509_certificate(data)
            cert.verify_directly_issued_by(self._ca)
            names = [name.value for name in cert.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
            usage = cert.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
            key = cert.public_key()
        except unreadable_certificate() as err:
            raise ProtocolError(f"the certificate of {device} is not one of this fleet's authority") from err
        if names != [device] or ExtendedKeyUsageOID.CLIENT_AUTH not in usage:
            raise ProtocolError(f"the certificate of {device} is that of somebody else")
        if not isinstance(key, EllipticCurvePublicKey):
            raise ProtocolError(f"the certificate of {device} has a key of another kind")
        return cert, key
