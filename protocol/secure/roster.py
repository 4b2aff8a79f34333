"""Who takes part in a sum, with which keys, on whose word: what every device checks before it gives away anything."""

import datetime
import hashlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta, Struct

from fedwright.protocol.crypto.certificates import unreadable_certificate
from fedwright.protocol.crypto.device_signing import is_signed_by
from fedwright.protocol.errors import ProtocolError
from fedwright.protocol.field_types import Id, Key
from fedwright.protocol.link.security import SERVER_NAME
from fedwright.protocol.secure.graph import MOST_THRESHOLD, NEIGHBOURS, THRESHOLD, looked_at

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.x509 import Certificate

MOST_MEMBERS = 1000
MARK_BYTES = 16
# Rosters that are read again and again while a sum lasts.
KEPT = 4

Mark = Annotated[bytes, Meta(min_length=MARK_BYTES, max_length=MARK_BYTES)]

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

    def mark(self) -> bytes:
        """By which it is bound to a sum where its words are left out."""
        return hashlib.sha256(b"fedwright member" + msgspec.msgpack.encode(self)).digest()[:MARK_BYTES]


class Roster(Struct, frozen=True, omit_defaults=True):
    """All members; those whose word a device does not look at by their marks, which bind them all the same.

    A mark is too short to be free of collisions, which a member can make of its own words alone: it may as well tell
    two neighbours two keys. neighbours: that each has. threshold: the share of them, and of members, without whom
    nothing is opened.
    """

    members: list[Member]
    others: dict[Id, Mark] = {}
    neighbours: int = NEIGHBOURS
    threshold: float = THRESHOLD

    @property
    def names(self) -> list[str]:
        """Of all of them."""
        return sorted([*self.others, *(member.device for member in self.members)])


def pack_roster(members: Sequence[Member], *, neighbours: int = NEIGHBOURS, threshold: float = THRESHOLD) -> bytes:
    """A roster as it travels; the same bytes for the same members."""
    return _packed(Roster(list(members), {}, neighbours, threshold))


def roster_for(data: bytes, device: str, least: int) -> bytes:
    """The roster as one device needs it: it looks at the words of some (graph.looked_at), and of itself."""
    roster = unpack_roster(data)
    seen = looked_at(names_of(data), digest_of(data), device, least, count=roster.neighbours) | {device}
    if len(seen) == len(roster.members):
        return data
    others = {member.device: member.mark() for member in roster.members if member.device not in seen}
    members = [member for member in roster.members if member.device in seen]
    return _packed(msgspec.structs.replace(roster, members=members, others=others))


@lru_cache(maxsize=KEPT)
def unpack_roster(data: bytes) -> Roster:
    """A roster, of which nothing is checked but its form."""
    try:
        roster = msgspec.msgpack.decode(data, type=Roster)
    except (msgspec.MsgspecError, RecursionError) as err:
        raise ProtocolError(f"the roster of a sum cannot be read ({err})") from err
    count = len(roster.members) + len(roster.others)
    if not 1 <= count <= MOST_MEMBERS or _packed(roster) != data:
        raise ProtocolError(f"the roster of a sum has {count} members, or not in their order")
    if len(set(roster.names)) < count:
        raise ProtocolError("a device or a key is twice in the roster of a sum")
    if not NEIGHBOURS <= roster.neighbours <= MOST_MEMBERS or not THRESHOLD <= roster.threshold <= MOST_THRESHOLD:
        raise ProtocolError(
            f"a sum with {roster.neighbours} neighbours and a threshold of {roster.threshold:g} is not taken part in; "
            f"it takes {NEIGHBOURS} to {MOST_MEMBERS} of them, and {THRESHOLD:.3f} to {MOST_THRESHOLD:g}"
        )
    return roster


def names_of(data: bytes) -> list[str]:
    """All members."""
    return unpack_roster(data).names


def _packed(roster: Roster) -> bytes:
    by_name = sorted(roster.members, key=lambda member: member.device)
    return msgspec.msgpack.encode(
        msgspec.structs.replace(roster, members=by_name, others=dict(sorted(roster.others.items())))
    )


def read_roster(data: bytes) -> dict[str, Member]:
    """The members whose words are here; ProtocolError for a roster that cannot be read or has something twice."""
    members = unpack_roster(data).members
    keys = [key for member in members for key in (member.mask_key, member.share_key)]
    if len(set(keys)) < len(keys):
        raise ProtocolError("a device or a key is twice in the roster of a sum")
    if len({member.session for member in members}) > 1:
        raise ProtocolError("the roster of a sum has keys that were made for another one")
    if len({member.work for member in members}) > 1:
        raise ProtocolError("the members of a sum have trained different things")
    return {member.device: member for member in members}


@lru_cache(maxsize=KEPT)
def digest_of(roster: bytes) -> bytes:
    """What everything in a sum is bound to: the same whoever's words are left out of a roster."""
    found = unpack_roster(roster)
    marks = found.others | {member.device: member.mark() for member in found.members}
    terms = (found.neighbours, found.threshold)
    bound = b"" if terms == (NEIGHBOURS, THRESHOLD) else msgspec.msgpack.encode(terms)
    return hashlib.sha256(b"fedwright roster" + msgspec.msgpack.encode(sorted(marks.items())) + bound).digest()


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
        if device == SERVER_NAME:
            raise ProtocolError(f"the certificate of {device} is that of a server, which is no member of a sum")
        if names != [device] or ExtendedKeyUsageOID.CLIENT_AUTH not in usage:
            raise ProtocolError(f"the certificate of {device} is that of somebody else")
        if not isinstance(key, EllipticCurvePublicKey):
            raise ProtocolError(f"the certificate of {device} has a key of another kind")
        return cert, key
