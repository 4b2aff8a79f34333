"""One device's part in one sum: all that it sends is made of one secret and of what it was told, always the same.

Keys, own mask, shares: HKDF of the secret; with another roster they are others. y is sent once:

    y_u = q_u + PRG(b_u) + Σ_{v > u} PRG(s_uv) - Σ_{v < u} PRG(s_uv)     v: neighbours that have shared, modulo 2^32

s_uv: X25519 of the two mask keys. Shares of b_u and of u's mask key go to its neighbours, sealed. Of a neighbour that
is in the sum its share of b_v is opened, of one that has left the share of its mask key, never both.
"""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from fedwright.protocol.crypto.x25519 import OwnKey, public_key
from fedwright.protocol.errors import ProtocolError
from fedwright.protocol.secure.graph import neighbours_of, threshold
from fedwright.protocol.secure.roster import Member, Roster, digest_of, names_of, read_roster, unpack_roster
from fedwright.protocol.secure.shamir import COEFFICIENT_BYTES, SHARE_BYTES, split

if TYPE_CHECKING:
    from fedwright.protocol.secure.masks import Words

ROOT_BYTES = 32


@dataclass(frozen=True)
class Part:
    """root: this device's secret of this sum, random and kept by itself. roster: as it travels."""

    device: str
    root: bytes
    roster: bytes

    @cached_property
    def members(self) -> dict[str, Member]:
        """Those who take part, as far as this device looks at their words."""
        return read_roster(self.roster)

    @cached_property
    def names(self) -> list[str]:
        """All who take part."""
        return names_of(self.roster)

    @property
    def terms(self) -> Roster:
        """How many neighbours and shares the members are bound to."""
        return unpack_roster(self.roster)

    @cached_property
    def digest(self) -> bytes:
        """Of the roster."""
        return digest_of(self.roster)

    @cached_property
    def graph(self) -> dict[str, frozenset[str]]:
        """Everybody's neighbours."""
        return neighbours_of(self.names, self.digest, count=self.terms.neighbours)

    @property
    def neighbours(self) -> list[str]:
        """Those with whom this device shares masks."""
        return sorted(self.graph[self.device])

    def marks(self) -> dict[str, bytes]:
        """For every neighbour the marks of its two shares, and under the own name that of the own mask.

        By them a wrong opening is known.
        """
        found = {o: mark(share[:SHARE_BYTES]) + mark(share[SHARE_BYTES:]) for o, share in self._shares.items()}
        return found | {self.device: mark(own_mask(self.root, self.digest))}

    def sealed(self) -> dict[str, bytes]:
        """For every neighbour its shares, which nobody else can read."""
        return {other: _seal(self._share_key(self.device, other), share) for other, share in self._shares.items()}

    def mask(self, words: "Words", sharers: Collection[str]) -> None:
        """Make y of q, in place; sharers: who has shared, of all members."""
        from fedwright.protocol.secure.masks import add_stream

        add_stream(words, own_mask(self.root, self.digest))
        own = OwnKey(mask_secret(self.root))
        for other in self.neighbours:
            if other in sharers:
                seed = pair_seed(own, self.members[other].mask_key, self.digest)
                add_stream(words, seed, sign=1 if self.device < other else -1)

    def unsealed(self, sender: str, data: bytes) -> tuple[bytes, bytes]:
        """A neighbour's shares: of its own mask and of its mask key."""
        try:
            share = _unseal(self._share_key(sender, self.device), data)
        except ValueError as err:
            raise ProtocolError(f"the shares of {sender} cannot be read") from err
        if len(share) != 2 * SHARE_BYTES:
            raise ProtocolError(f"the shares of {sender} have {len(share)} bytes but must have {2 * SHARE_BYTES}")
        return share[:SHARE_BYTES], share[SHARE_BYTES:]

    @cached_property
    def _shares(self) -> dict[str, bytes]:
        count = len(self.neighbours)
        places = list(range(1, count + 1))
        needed = threshold(count, self.terms.threshold)
        own = self._split(own_mask(self.root, self.digest), "own mask shares", needed, places)
        key = self._split(mask_secret(self.root), "mask key shares", needed, places)
        return {other: own[place] + key[place] for place, other in zip(places, self.neighbours, strict=True)}

    def _split(self, secret: bytes, name: str, needed: int, places: Sequence[int]) -> Mapping[int, bytes]:
        randomness = derive(self.root, name, self.digest, size=COEFFICIENT_BYTES * (needed - 1))
        return split(secret, randomness, threshold=needed, places=places)

    def _share_key(self, sender: str, receiver: str) -> bytes:
        other = receiver if sender == self.device else sender
        if other not in self._shared:
            self._shared[other] = self._share_own.agree(self.members[other].share_key)
        return derive(self._shared[other], f"share {sender} {receiver}", self.digest)

    @cached_property
    def _share_own(self) -> OwnKey:
        return OwnKey(share_secret(self.root))

    @cached_property
    def _shared(self) -> dict[str, bytes]:
        """What shares are sealed by, both ways; each is agreed on once."""
        return {}


def place_of(graph: Mapping[str, frozenset[str]], owner: str, holder: str) -> int:
    """The place of the share of `owner` that `holder` has."""
    return sorted(graph[owner]).index(holder) + 1


def mask_secret(root: bytes) -> bytes:
    """Of the key that pairs agree on their masks with."""
    return derive(root, "mask key")


def share_secret(root: bytes) -> bytes:
    """Of the key that shares are sealed with."""
    return derive(root, "share key")


def own_mask(root: bytes, digest: bytes) -> bytes:
    """b_u."""
    return derive(root, "own mask", digest)


def noise_seed(root: bytes, digest: bytes) -> bytes:
    """Of which a device's share of noise is drawn."""
    return derive(root, "noise", digest)


def public_keys(root: bytes) -> tuple[bytes, bytes]:
    """What others may know of a secret: its mask key and its share key."""
    return public_key(mask_secret(root)), public_key(share_secret(root))


def pair_seed(own: OwnKey, public: bytes, digest: bytes) -> bytes:
    """s_uv: the same for both of a pair, for one sum."""
    return derive(own.agree(public), "pair mask", digest)


def mark(secret: bytes) -> bytes:
    """By which a secret of enough random bytes is known again, and which tells nothing of it."""
    return hashlib.sha256(b"fedwright sum mark" + secret).digest()


def derive(secret: bytes, name: str, digest: bytes = b"", *, size: int = 32) -> bytes:
    """HKDF-SHA256 (RFC 5869); for more bytes than that gives, the ChaCha20 stream of it."""
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    info = b"fedwright secure sum\0" + name.encode() + b"\0" + digest
    key = HKDF(SHA256(), length=32, salt=None, info=info).derive(secret)
    return key if size == 32 else Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(size))


def _seal(key: bytes, data: bytes) -> bytes:
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    # A key is of one sum and one direction and seals one text, so that its nonce may be zero.
    return ChaCha20Poly1305(key).encrypt(bytes(12), data, None)


def _unseal(key: bytes, data: bytes) -> bytes:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    try:
        return ChaCha20Poly1305(key).decrypt(bytes(12), data, None)
    except InvalidTag as err:
        raise ValueError("sealed by somebody else, or for another sum") from err
