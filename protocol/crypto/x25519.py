"""X25519 (RFC 7748): two devices agree on a secret that nobody else knows.

The package that does it is imported when a key is used, so that an agent that hides nothing never loads it.
"""

from typing import TYPE_CHECKING

from fedwright.protocol.errors import ProtocolError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

KEY_BYTES = 32


class OwnKey:
    """A secret of 32 random bytes, made ready once for all with whom it is used."""

    def __init__(self, secret: bytes) -> None:
        self._own = _private(secret)

    @property
    def public(self) -> bytes:
        """What others may know of it."""
        return self._own.public_key().public_bytes_raw()

    def agree(self, public: bytes) -> bytes:
        """The secret that two devices share; ProtocolError for a key that would give the same one with everybody."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

        if len(public) != KEY_BYTES:
            raise ProtocolError(f"a public key has {len(public)} bytes but must have {KEY_BYTES}; make it anew")
        try:
            return self._own.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError as err:
            text = "a public key is of low order, so that its secrets are known to all; make it anew"
            raise ProtocolError(text) from err


def public_key(secret: bytes) -> bytes:
    """What others may know of a secret of 32 random bytes."""
    return OwnKey(secret).public


def _private(secret: bytes) -> "X25519PrivateKey":
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    if len(secret) != KEY_BYTES:
        raise ProtocolError(f"a secret has {len(secret)} bytes but must have {KEY_BYTES}; make it anew")
    return X25519PrivateKey.from_private_bytes(secret)
