"""Checks Ed25519 signatures (RFC 8032) with integers alone, so that an idle agent loads no package for it.

The server signs; a device checks the few messages of a round, at some milliseconds each. A check handles public
values only, so that its running time may depend on them; whatever touches a secret key uses `cryptography`.
"""

import hashlib

KEY_BYTES = 32
SIGNATURE_BYTES = 64

_P = 2**255 - 19
_ORDER = 2**252 + 27742317777372353535851937790883648493
_D = -121665 * pow(121666, -1, _P) % _P
_ROOT_OF_MINUS_ONE = pow(2, (_P - 1) // 4, _P)
_Point = tuple[int, int, int, int]
"""Extended coordinates (X, Y, Z, T) with x = X/Z, y = Y/Z, xy = T/Z."""
_ZERO: _Point = (0, 1, 1, 0)


def verify(public_key: bytes, message: bytes, signature: bytes) -> bool:
    """Whether the holder of the private key signed the message: S·B = R + h·A."""
    if len(public_key) != KEY_BYTES or len(signature) != SIGNATURE_BYTES:
        return False
    key = _decompress(public_key)
    nonce = _decompress(signature[:32])
    s = int.from_bytes(signature[32:], "little")
    if key is None or nonce is None or s >= _ORDER:
        return False
    h = int.from_bytes(hashlib.sha512(signature[:32] + public_key + message).digest(), "little") % _ORDER
    minus_key = (-key[0] % _P, key[1], key[2], -key[3] % _P)
    return _equal(_double_multiply(s, _BASE, h, minus_key), nonce)


def _add(left: _Point, right: _Point) -> _Point:
    a = (left[1] - left[0]) * (right[1] - right[0]) % _P
    b = (left[1] + left[0]) * (right[1] + right[0]) % _P
    c = 2 * left[3] * right[3] * _D % _P
    d = 2 * left[2] * right[2] % _P
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % _P, g * h % _P, f * g % _P, e * h % _P


def _double_multiply(left: int, left_point: _Point, right: int, right_point: _Point) -> _Point:
    """left·P + right·Q with one chain of doublings."""
    both = _add(left_point, right_point)
    total = _ZERO
    for bit in reversed(range(256)):
        total = _add(total, total)
        choice = (left >> bit & 1, right >> bit & 1)
        if choice != (0, 0):
            total = _add(total, both if choice == (1, 1) else left_point if choice[0] else right_point)
    return total


def _equal(left: _Point, right: _Point) -> bool:
    return (left[0] * right[2] - right[0] * left[2]) % _P == 0 and (left[1] * right[2] - right[1] * left[2]) % _P == 0


def _decompress(data: bytes) -> _Point | None:
    """The point of 32 bytes: y, and the lowest bit of x on top; None when there is none."""
    y = int.from_bytes(data, "little")
    odd = y >> 255
    y &= (1 << 255) - 1
    if y >= _P:
        return None
    x_squared = (y * y - 1) * pow(_D * y * y + 1, -1, _P) % _P
    x = pow(x_squared, (_P + 3) // 8, _P)
    if (x * x - x_squared) % _P:
        x = x * _ROOT_OF_MINUS_ONE % _P
    if (x * x - x_squared) % _P or (x == 0 and odd):
        return None
    if x & 1 != odd:
        x = _P - x
    return x, y, 1, x * y % _P


def _base_point() -> _Point:
    point = _decompress((4 * pow(5, -1, _P) % _P).to_bytes(32, "little"))
    if point is None:
        raise ArithmeticError("the base point of Ed25519 does not decompress")
    return point


_BASE = _base_point()
