"""A sum of counts that hides its parts (after Bonawitz et al., Practical Secure Aggregation, 2017).

Device i holds counts c_i, a seed b_i of its own, and with every other device j a seed s_ij that only the two know
(X25519, then HKDF with the name of the sum, so that seeds of two sums have nothing to do with each other). It sends

    y_i = c_i + PRG(b_i) + sum_{j > i} PRG(s_ij) - sum_{j < i} PRG(s_ij)      modulo 2^64

which is as good as random to anyone else. Once the server has y_i of the devices U it says who they are; each of them
opens b_i, and s_id for every device d that gave keys but no counts. Then

    sum_U c_i = sum_U y_i - sum_U PRG(b_i) - sum_{i in U, d not in U} +-PRG(s_id)

and nothing less than the sum over U can be made of it. Counts of a device that come too late stay hidden, because its
b_d is never opened.

Left out: shares of b_i with the other devices, which would let a sum survive a device that leaves between its counts
and its opening: the sum is then begun anew without it. Whoever also has what that device sends later could tell its
counts from the two sums; an honest server throws it away. Nor is a server detected that hands out keys of its own.
"""

import hashlib
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fedwright.protocol.crypto.x25519 import agree
from fedwright.protocol.errors import ProtocolError

Counts = NDArray[np.int64]
Masked = NDArray[np.uint64]

# With two, each learns the other's counts from the sum.
LEAST_DEVICES = 3


def own_seed(secret: bytes, name: str) -> bytes:
    """b_i: the device's own seed for the sum of this name."""
    return _hkdf(secret, f"fedwright sum own\0{name}")


def pair_seed(secret: bytes, public: bytes, name: str) -> bytes:
    """s_ij: the seed that two devices share for the sum of this name."""
    return _hkdf(agree(secret, public), f"fedwright sum pair\0{name}")


def masked(device: str, counts: Counts, own: bytes, pairs: Mapping[str, bytes]) -> Masked:
    """y_i: a device's counts under its own mask and one for every other device."""
    hidden: Masked = counts.astype(np.uint64) + _stream(own, len(counts))
    for other, seed in pairs.items():
        hidden += _signed(device, other, seed, len(counts))
    return hidden


def unmasked(parts: Mapping[str, Masked], own: Mapping[str, bytes], pairs: Mapping[str, Mapping[str, bytes]]) -> Counts:
    """The sum of the counts behind the parts, from their devices' own seeds and those with devices that left."""
    total: Masked = np.sum(np.stack([parts[device] for device in sorted(parts)]), axis=0, dtype=np.uint64)
    for device in parts:
        total -= _stream(own[device], len(total))
        for gone, seed in pairs[device].items():
            total -= _signed(device, gone, seed, len(total))
    return total.astype(np.int64)


def to_bytes(values: Masked) -> bytes:
    """Masked counts as they travel: little-endian, eight bytes each."""
    return values.astype("<u8").tobytes()


def from_bytes(data: bytes, length: int) -> Masked:
    """Masked counts from the wire; ProtocolError unless there are as many as were asked for."""
    if len(data) != 8 * length:
        raise ProtocolError(f"it sent {len(data)} bytes of masked counts but {8 * length} were asked for")
    return np.frombuffer(data, "<u8").astype(np.uint64)


def _signed(device: str, other: str, seed: bytes, length: int) -> Masked:
    """Of each pair the smaller id adds the mask and the larger one subtracts it."""
    stream = _stream(seed, length)
    return stream if device < other else np.negative(stream)


def _stream(seed: bytes, length: int) -> Masked:
    return np.frombuffer(hashlib.shake_256(seed).digest(8 * length), "<u8").astype(np.uint64)


def _hkdf(secret: bytes, info: str) -> bytes:
    """HKDF-SHA256 (RFC 5869) without salt."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(SHA256(), length=32, salt=None, info=info.encode()).derive(secret)
