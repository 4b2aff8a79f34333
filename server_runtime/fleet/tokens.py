"""One-time tokens by which devices that make their own keys are enrolled; kept hashed, and gone once they are used."""

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Sequence

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedwright.protocol.crypto.certificates import unreadable_certificate
from fedwright.protocol.enrolment import EnrolmentReply, EnrolmentRequest, Token, mark_of, read_token
from fedwright.protocol.errors import ConfigError
from fedwright.protocol.support.files import write_private
from fedwright.server_runtime.fleet.authority import Authority
from fedwright.server_runtime.fleet.trust import admit, check_new_device, make_info

TOKENS = "tokens.json"
HOURS = 24.0


class _Offer(msgspec.Struct):
    """What a token is good for."""

    sha256: str
    expires_s: float
    fleet: str
    broker: str
    edges: list[str] = []


class Tokens:
    """The tokens of an authority that are open."""

    def __init__(self, authority: Authority, *, clock: Callable[[], float] = time.time) -> None:
        self._authority = authority
        self._file = authority.folder / TOKENS
        self._clock = clock

    def offer(self, device: str, *, fleet: str, broker: str, edges: Sequence[str] = (), hours: float = HOURS) -> str:
        """A token for a device, which takes the place of one that it had."""
        check_new_device(self._authority, device, edges)
        if hours <= 0:
            raise ConfigError(f"--hours is {hours} but must be above 0")
        secret = secrets.token_urlsafe(18)
        offers = self._read()
        offers[device] = _Offer(_hash(secret), self._clock() + hours * 3600, fleet, broker, list(edges))
        self._write(offers)
        return Token(device, secret, mark_of(self._authority.ca.read_bytes())).text()

    def redeem(self, request: EnrolmentRequest) -> EnrolmentReply:
        """Certify the key of a device that shows its token; the token is void before the certificate exists."""
        token, offers = read_token(request.token), self._read()
        offer = offers.get(token.device)
        if offer is None or not hmac.compare_digest(_hash(token.secret), offer.sha256):
            raise ConfigError("this token is unknown or was used before; ask for a new one")
        if offer.expires_s <= self._clock():
            raise ConfigError("this token has expired; ask for a new one")
        if request.device != token.device:
            raise ConfigError(f"this token is for {token.device}, not for {request.device}")
        key = requested_key(request)
        del offers[token.device]
        self._write(offers)
        return certify_request(
            self._authority, request.device, key, fleet=offer.fleet, broker=offer.broker, edges=offer.edges
        )

    def _read(self) -> dict[str, _Offer]:
        if not self._file.exists():
            return {}
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=dict[str, _Offer])
        except msgspec.MsgspecError as err:
            raise ConfigError(f"{self._file} cannot be read ({err}); remove it and make new tokens") from err

    def _write(self, offers: dict[str, _Offer]) -> None:
        write_private(self._file, msgspec.json.encode(offers))


def requested_key(request: EnrolmentRequest) -> ec.EllipticCurvePublicKey:
    """The key that a signing request is for, by which it must be signed."""
    try:
        csr = x509.load_pem_x509_csr(request.csr.encode())
        right, key = csr.is_signature_valid, csr.public_key()
    except unreadable_certificate() as err:
        raise ConfigError(f"the signing request of {request.device} cannot be read ({err}); make it again") from err
    if not right or not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise ConfigError(f"the signing request of {request.device} is not signed by a key on P-256; make it again")
    return key


def certify_request(
    authority: Authority,
    device: str,
    key: ec.EllipticCurvePublicKey,
    *,
    fleet: str,
    broker: str,
    edges: Sequence[str] = (),
) -> EnrolmentReply:
    """A device's bundle but for its key, which it has."""
    check_new_device(authority, device, edges)
    cert = authority.certify(device, key)
    admit(authority, device, fleet=fleet, edges=edges)
    info = make_info(authority, device, cert, fleet=fleet, broker=broker, edges=edges)
    pem = cert.public_bytes(serialization.Encoding.PEM).decode()
    return EnrolmentReply(info, authority.ca.read_text(), pem)


def _hash(secret: str) -> str:
    """Secrets are long and random, so that one round is enough."""
    return hashlib.sha256(secret.encode()).hexdigest()
