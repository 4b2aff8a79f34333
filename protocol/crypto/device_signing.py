"""A device's own word: signatures with the key of its certificate (ECDSA on P-256, SHA-256), 64 bytes each."""

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from fedwright.protocol.crypto.certificates import unreadable_certificate
from fedwright.protocol.errors import ConfigError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey

_HALF_BYTES = 32


def sign_with(key: Path, message: bytes) -> bytes:
    """Sign with the private key in a file; the package that does it is loaded when the first word is signed."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec, utils

    r, s = utils.decode_dss_signature(_load(key).sign(message, ec.ECDSA(hashes.SHA256())))
    return r.to_bytes(_HALF_BYTES, "big") + s.to_bytes(_HALF_BYTES, "big")


def is_signed_by(public_key: "EllipticCurvePublicKey", message: bytes, signature: bytes) -> bool:
    """Whether the holder of the private key signed the message."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec, utils

    if len(signature) != 2 * _HALF_BYTES:
        return False
    r, s = (int.from_bytes(half, "big") for half in (signature[:_HALF_BYTES], signature[_HALF_BYTES:]))
    try:
        public_key.verify(utils.encode_dss_signature(r, s), message, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        return False
    return True


@lru_cache(maxsize=4)
def _load(path: Path) -> "EllipticCurvePrivateKey":
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    unusable: tuple[type[Exception], ...] = (OSError, *unreadable_certificate())
    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except unusable as err:
        raise ConfigError(f"{path} holds no usable key ({err}); enroll the device again") from err
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{path} holds a key of another kind; enroll the device again")
    return key
