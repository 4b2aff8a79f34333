"""Sums that hide their parts: the maths, whoever leaves in between."""

import hmac
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedwright.protocol.crypto import secure_sum
from fedwright.protocol.crypto.secure_sum import from_bytes, masked, own_seed, pair_seed, to_bytes, unmasked
from fedwright.protocol.crypto.x25519 import public_key
from fedwright.protocol.errors import ProtocolError
from helpers.examples import few

NAME = "a-sum"
SECRETS = {device: bytes([number] * 32) for number, device in enumerate(("ann", "bob", "cid", "dee"), 1)}
PUBLIC = {device: public_key(secret) for device, secret in SECRETS.items()}
PAIRS = {
    device: {other: pair_seed(secret, PUBLIC[other], NAME) for other in SECRETS if other != device}
    for device, secret in SECRETS.items()
}
OWN = {device: own_seed(secret, NAME) for device, secret in SECRETS.items()}


def add_up(counts: dict[str, NDArray[Any]], present: set[str]) -> NDArray[Any]:
    """The sum over those present of what all masked with each other's keys."""
    parts = {device: masked(device, counts[device], OWN[device], PAIRS[device]) for device in present}
    gone = SECRETS.keys() - set(present)
    opened = {device: {other: PAIRS[device][other] for other in gone} for device in present}
    return unmasked(parts, {device: OWN[device] for device in present}, opened)


@few(30)
@given(
    st.lists(st.lists(st.integers(0, 2**50), min_size=4, max_size=4), min_size=1, max_size=6),
    st.sets(st.sampled_from(sorted(SECRETS)), min_size=1),
)
def test_the_sum_over_those_present_is_the_plain_sum(rows: list[list[int]], present: set[str]) -> None:
    table = np.array(rows, np.int64)
    counts = dict(zip(sorted(SECRETS), table.T, strict=True))
    np.testing.assert_array_equal(add_up(counts, present), sum(counts[device] for device in present))


def test_both_of_a_pair_have_the_same_seed_and_others_do_not() -> None:
    assert PAIRS["ann"]["bob"] == PAIRS["bob"]["ann"] != PAIRS["ann"]["cid"]
    assert pair_seed(SECRETS["ann"], PUBLIC["bob"], "another-sum") != PAIRS["ann"]["bob"]
    assert len({*OWN.values(), *(seed for own in PAIRS.values() for seed in own.values())}) == 4 + 6


def test_masked_counts_look_like_noise() -> None:
    """Whatever the counts, the bits of what is sent are even."""
    zeros = np.zeros(20_000, np.int64)
    hidden = masked("ann", zeros, OWN["ann"], PAIRS["ann"])
    bits = np.unpackbits(hidden.view(np.uint8))
    assert abs(bits.mean() - 0.5) < 0.002
    assert len(np.unique(hidden)) == len(hidden)


def test_without_the_own_seed_late_counts_stay_hidden() -> None:
    """All that the server may learn of a device that was counted as gone: every pair's seed, but not its own."""
    counts = np.array([5, 6, 7], np.int64)
    late = masked("dee", counts, OWN["dee"], PAIRS["dee"])
    guess = unmasked({"dee": late}, {"dee": bytes(32)}, {"dee": PAIRS["dee"]})
    assert (np.abs(guess) > 2**40).all()


def test_seeds_are_hkdf() -> None:
    """RFC 5869 with an empty salt, written out."""
    inner = hmac.digest(bytes(32), SECRETS["ann"], "sha256")
    assert OWN["ann"] == hmac.digest(inner, b"fedwright sum own\0a-sum\x01", "sha256")


def test_counts_travel_as_bytes() -> None:
    values = np.array([0, 1, 2**64 - 1], np.uint64)
    assert to_bytes(values)[8:16] == b"\x01" + bytes(7)
    np.testing.assert_array_equal(from_bytes(to_bytes(values), 3), values)
    with pytest.raises(ProtocolError, match="24 bytes of masked counts but 32 were asked for"):
        from_bytes(to_bytes(values), 4)


def test_the_least_number_of_devices_hides_each_from_the_others() -> None:
    assert secure_sum.LEAST_DEVICES == 3
