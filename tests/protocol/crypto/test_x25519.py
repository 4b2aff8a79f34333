"""X25519 against the standard's own examples; keys that would hide nothing."""

import pytest

from fedwright.protocol.crypto.x25519 import OwnKey, public_key
from fedwright.protocol.errors import ProtocolError

# RFC 7748, section 5.2: scalar, u-coordinate, output.
STANDARD = [
    (
        "a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4",
        "e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c",
        "c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552",
    ),
    (
        "4b66e9d4d1b4673c5ad22691957d6af5c11b6421e0ea01d42ca4169e7918ba0d",
        "e5210f12786811d3f4b7959d0538ae2c31dbe7106fc03c3efc4cd549c715a493",
        "95cbde9476e8907d7aade45cb4b873f88b595a68799fa152e6f8f7647aac7957",
    ),
]
# RFC 7748, section 6.1: the secrets of Alice and Bob, their public keys, what they share.
ALICE = "77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a"
BOB = "5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb"
ALICE_PUBLIC = "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"
BOB_PUBLIC = "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
SHARED = "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"

P = 2**255 - 19
# u-coordinates of points of order 1, 2, 4 and 8, also as numbers of P and more.
LOW_ORDER = [0, 1, P - 1, P, P + 1, 325606250916557431795983626356110631294008115727848805560023387167927233504]


def key(number: int) -> bytes:
    return number.to_bytes(32, "little")


@pytest.mark.parametrize(("scalar", "u", "output"), STANDARD, ids=["1", "2"])
def test_the_standards_examples(scalar: str, u: str, output: str) -> None:
    assert OwnKey(bytes.fromhex(scalar)).agree(bytes.fromhex(u)).hex() == output


def test_the_standards_chain_of_a_thousand() -> None:
    k = u = key(9)
    seen = []
    for _ in range(1000):
        k, u = OwnKey(k).agree(u), k
        seen.append(k.hex())
    assert seen[0] == "422c8e7a6227d7bca1350b3e2bb7279f7897b87bb6854b783c60e80311ae3079"
    assert seen[-1] == "684cf59ba83309552800ef566f2f4d3c1c3887c49360e3875f2eb94d99532c51"


def test_the_standards_two_parties_share_a_secret() -> None:
    alice, bob = bytes.fromhex(ALICE), bytes.fromhex(BOB)
    assert (public_key(alice).hex(), public_key(bob).hex()) == (ALICE_PUBLIC, BOB_PUBLIC)
    assert OwnKey(alice).agree(public_key(bob)).hex() == OwnKey(bob).agree(public_key(alice)).hex() == SHARED


@pytest.mark.parametrize("u", LOW_ORDER)
def test_keys_that_hide_nothing_are_refused(u: int) -> None:
    with pytest.raises(ProtocolError, match="of low order"):
        OwnKey(bytes(range(32))).agree(key(u))


def test_keys_of_another_length_are_refused() -> None:
    with pytest.raises(ProtocolError, match="has 31 bytes but must have 32"):
        OwnKey(bytes(32)).agree(bytes(31))
    with pytest.raises(ProtocolError, match="a secret has 5 bytes"):
        public_key(bytes(5))
