"""Secrets in shares: any `threshold` of them give it back, fewer tell nothing (Shamir 1979).

f(x) = secret + c_1 x + … + c_{t-1} x^{t-1}     modulo 2^256 + 297, the first prime that every 32 bytes are below
share_i = f(i), i = 1, 2, …                      secret = f(0)
"""

from collections.abc import Mapping, Sequence

from fedwright.protocol.errors import ProtocolError

PRIME = 2**256 + 297
SECRET_BYTES = 32
SHARE_BYTES = 33
# Bytes from which one coefficient is drawn: so many more than the prime has that all are as good as equally likely.
COEFFICIENT_BYTES = 48


def split(secret: bytes, randomness: bytes, *, threshold: int, places: Sequence[int]) -> dict[int, bytes]:
    """Shares of a secret by their places, which are 1 or more; randomness: COEFFICIENT_BYTES for each coefficient."""
    if len(secret) != SECRET_BYTES or len(randomness) != COEFFICIENT_BYTES * (threshold - 1):
        raise ProtocolError("a secret is split from other bytes than it takes; this is a mistake in the program")
    if not 1 <= threshold <= len(places) or min(places) < 1:
        raise ProtocolError(f"{len(places)} shares, of which {threshold} are enough, cannot be made")
    drawn = [randomness[start : start + COEFFICIENT_BYTES] for start in range(0, len(randomness), COEFFICIENT_BYTES)]
    coefficients = [int.from_bytes(secret, "big"), *(int.from_bytes(part, "big") % PRIME for part in drawn)]
    return {place: _evaluate(coefficients, place).to_bytes(SHARE_BYTES, "big") for place in places}


def join(shares: Mapping[int, bytes], *, threshold: int) -> bytes:
    """The secret, from as many shares as it takes; ProtocolError when they are none of one secret of 32 bytes."""
    if len(shares) < threshold:
        raise ProtocolError(f"{len(shares)} shares are here but {threshold} are needed")
    points = {place: int.from_bytes(share, "big") for place, share in sorted(shares.items())[:threshold]}
    total = 0
    for place, value in points.items():
        above, below = 1, 1
        for other in points:
            if other != place:
                above = above * -other % PRIME
                below = below * (place - other) % PRIME
        total = (total + value * above * pow(below, -1, PRIME)) % PRIME
    if total >= 2**256:
        raise ProtocolError("the shares are not of one secret")
    return total.to_bytes(SECRET_BYTES, "big")


def _evaluate(coefficients: Sequence[int], place: int) -> int:
    total = 0
    for coefficient in reversed(coefficients):
        total = (total * place + coefficient) % PRIME
    return total
