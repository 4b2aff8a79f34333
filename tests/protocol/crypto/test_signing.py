"""Ed25519 checks against the standard's own examples and against a second implementation; signed messages."""

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from fedwright.protocol import codec
from fedwright.protocol.crypto.signing import verify
from fedwright.protocol.errors import BadMessage
from fedwright.protocol.messages import Ack, Chunk, Dismiss, Gone
from helpers.examples import few

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC = KEY.public_key().public_bytes_raw()
ORDER = 2**252 + 27742317777372353535851937790883648493

# RFC 8032, section 7.1, tests 1 to 3: public key, message, signature.
STANDARD = [
    (
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46b"
        "d25bf5f0595bbe24655141438e7a100b",
    ),
    (
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c"
        "387b2eaeb4302aeeb00d291612bb0c00",
    ),
    (
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc659"
        "4a7c15e9716ed28dc027beceea1ec40a",
    ),
]


@pytest.mark.parametrize(("key", "message", "signature"), STANDARD, ids=["1", "2", "3"])
def test_the_examples_of_the_standard(key: str, message: str, signature: str) -> None:
    assert verify(bytes.fromhex(key), bytes.fromhex(message), bytes.fromhex(signature))


@few(20)
@given(st.binary(min_size=32, max_size=32), st.binary(max_size=200))
def test_what_another_implementation_signs_is_right(seed: bytes, message: bytes) -> None:
    key = Ed25519PrivateKey.from_private_bytes(seed)

    assert verify(key.public_key().public_bytes_raw(), message, key.sign(message))


@few(30)
@given(st.integers(0, 64 * 8 - 1))
def test_any_flipped_bit_of_a_signature_is_wrong(bit: int) -> None:
    signature = bytearray(KEY.sign(b"message"))
    signature[bit // 8] ^= 1 << bit % 8

    assert not verify(PUBLIC, b"message", bytes(signature))


@few(30)
@given(st.binary(max_size=80), st.binary(max_size=80))
def test_garbage_is_wrong(key: bytes, signature: bytes) -> None:
    assert not verify(key, b"message", signature)


def test_another_message_or_key_is_wrong() -> None:
    signature = KEY.sign(b"message")
    other = Ed25519PrivateKey.from_private_bytes(bytes(32)).public_key().public_bytes_raw()

    assert verify(PUBLIC, b"message", signature)
    assert not verify(PUBLIC, b"messagf", signature)
    assert not verify(other, b"message", signature)


def test_a_second_form_of_the_same_signature_is_wrong() -> None:
    signature = KEY.sign(b"message")
    s = int.from_bytes(signature[32:], "little") + ORDER

    assert not verify(PUBLIC, b"message", signature[:32] + s.to_bytes(32, "little"))


def check(message: bytes, signature: bytes) -> bool:
    return verify(PUBLIC, message, signature)


def test_a_signed_message_is_accepted() -> None:
    payload = codec.encode(Ack("t1"), sender="server", boot="b", sign=KEY.sign)

    assert codec.decode(payload, verify=check).body == Ack("t1")
    assert codec.decode(payload).body == Ack("t1")


@pytest.mark.parametrize("message", [Ack("t1"), Dismiss("b", "run_over", "bye")], ids=["ack", "dismiss"])
def test_an_unsigned_order_is_refused(message: Ack | Dismiss) -> None:
    payload = codec.encode(message, sender="server", boot="b")

    with pytest.raises(BadMessage, match="is not signed"):
        codec.decode(payload, verify=check)


def test_a_changed_order_is_refused() -> None:
    payload = codec.encode(Ack("t1"), sender="server", boot="b", sign=KEY.sign)

    with pytest.raises(BadMessage, match="wrong signature"):
        codec.decode(payload.replace(b"t1", b"t2"), verify=check)


@pytest.mark.parametrize("message", [Gone(), Chunk("0" * 64, 0, memoryview(b"x"))], ids=["gone", "chunk"])
def test_what_orders_nothing_needs_no_signature(message: Gone | Chunk) -> None:
    payload = codec.encode(message, sender="server", boot="b", sign=KEY.sign)

    assert codec.decode(payload, verify=check).body == message


@pytest.mark.parametrize("payload", [b"\xc1", b"\xc1" + bytes(64), b"\xc1" * 200], ids=["bare", "no envelope", "twice"])
def test_a_signature_around_nothing_is_refused(payload: bytes) -> None:
    with pytest.raises(BadMessage):
        codec.decode(payload, verify=check)
