"""X25519 (RFC 7748) with integers alone: two devices agree on a secret without a cryptography package.

Running time depends on nothing but the size of integers, which Python does not hide completely: a secret is used a few
times per run, behind a network, and never for anything but masks.
"""

from fedwright.protocol.errors import ProtocolError

KEY_BYTES = 32

_P = 2**255 - 19
_A24 = 121_665
_BASE = (9).to_bytes(KEY_BYTES, "little")


def public_key(secret: bytes) -> bytes:
    """What others may know of a secret of 32 random bytes."""
    return _multiply(_scalar(secret), _coordinate(_BASE))


def agree(secret: bytes, public: bytes) -> bytes:
    """The secret that two devices share; ProtocolError for a key that would give the same one with everybody."""
    if len(public) != KEY_BYTES:
        raise ProtocolError(f"a public key has {len(public)} bytes but must have {KEY_BYTES}; make it anew")
    shared = _multiply(_scalar(secret), _coordinate(public))
    if not any(shared):
        raise ProtocolError("a public key is of low order, so that its secrets are known to all; make it anew")
    return shared


def _scalar(secret: bytes) -> int:
    """A multiple of 8, so that points of low order vanish, with its top bit at a fixed place."""
    if len(secret) != KEY_BYTES:
        raise ProtocolError(f"a secret has {len(secret)} bytes but must have {KEY_BYTES}; make it anew")
    return int.from_bytes(secret, "little") & ((1 << 254) - 8) | 1 << 254


def _coordinate(public: bytes) -> int:
    return (int.from_bytes(public, "little") & ((1 << 255) - 1)) % _P


def _multiply(scalar: int, u: int) -> bytes:
    """The u-coordinate of scalar times the point at u, by the Montgomery ladder of the standard."""
    x2, z2, x3, z3 = 1, 0, u, 1
    swapped = 0
    for at in range(254, -1, -1):
        bit = scalar >> at & 1
        if swapped != bit:
            x2, z2, x3, z3 = x3, z3, x2, z2
        swapped = bit
        a, b, c, d = x2 + z2, x2 - z2, x3 + z3, x3 - z3
        aa, bb, da, cb = a * a % _P, b * b % _P, d * a % _P, c * b % _P
        e = aa - bb
        x3, z3 = (da + cb) * (da + cb) % _P, u * (da - cb) * (da - cb) % _P
        x2, z2 = aa * bb % _P, e * (aa + _A24 * e) % _P
    if swapped:
        x2, z2 = x3, z3
    return (x2 * pow(z2, _P - 2, _P) % _P).to_bytes(KEY_BYTES, "little")
