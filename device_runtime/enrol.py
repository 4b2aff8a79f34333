"""Enrolls this device: it makes its own key, asks for a certificate with a one-time token, and keeps the bundle."""

import http.client
import ssl
from pathlib import Path

import msgspec

from fedwright.protocol import topics
from fedwright.protocol.crypto.certificates import unreadable_certificate
from fedwright.protocol.enrolment import (
    CA_PATH,
    ENROLL_PATH,
    ENROLL_PORT,
    MAX_BYTES,
    EnrolmentReply,
    EnrolmentRequest,
    mark_of,
    read_record,
    read_token,
)
from fedwright.protocol.errors import ConfigError, LinkError
from fedwright.protocol.support.files import replace_file, write_private

TIMEOUT_S = 30.0


def request_for(device: str, folder: Path, *, token: str = "") -> EnrolmentRequest:
    """A signing request for this device's key, which is made when there is none and stays in the folder."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    topics.check_name(device, what="device")
    if (folder / "cert.pem").exists():
        raise ConfigError(f"{folder} already holds a bundle; remove it first, or give another folder with --out")
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "key.pem"
    if not file.exists():
        made = ec.generate_private_key(ec.SECP256R1())
        plain = serialization.NoEncryption()
        write_private(file, made.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain))
    try:
        key = serialization.load_pem_private_key(file.read_bytes(), password=None)
    except unreadable_certificate() as err:
        raise ConfigError(f"{file} cannot be read ({err}); remove it, and a new one is made") from err
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{file} is of another kind; remove it, and a new one is made")
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, device)])
    csr = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    return EnrolmentRequest(device, csr.public_bytes(serialization.Encoding.PEM).decode(), token)


def enroll_at(server: str, token: str, folder: Path) -> EnrolmentReply:
    """Ask the authority at host or host:port; its certificate must be the one that the token names."""
    parts = read_token(token)
    host, _, port = server.removeprefix("https://").partition(":")
    if port and not port.isdecimal():
        raise ConfigError(f"--server is {server!r}; give host or host:port")
    where = (host, int(port or ENROLL_PORT))
    # Nothing secret is said before it is known who listens.
    ca = _ask(where, ssl._create_unverified_context(), "GET", CA_PATH)
    if mark_of(ca) != parts.mark:
        raise LinkError(
            f"{server} is not the authority that made this token; check the address, or ask for a new token"
        )
    context = ssl.create_default_context(cadata=ca.decode())
    asked = msgspec.json.encode(request_for(parts.device, folder, token=token))
    reply = _ask(where, context, "POST", ENROLL_PATH, asked)
    return keep_reply(read_record(reply, EnrolmentReply, what="the reply"), folder)


def keep_reply(reply: EnrolmentReply, folder: Path) -> EnrolmentReply:
    """Put the authority's answer beside the key that it is for."""
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization

    file = folder / "key.pem"
    if not file.exists():
        raise ConfigError(f"{file} is missing; ask with `fedwright device enroll` from this device first")
    try:
        key = serialization.load_pem_private_key(file.read_bytes(), password=None).public_key()
    except unreadable_certificate() as err:
        raise ConfigError(f"{file} cannot be read ({err}); remove it and ask again from this device") from err
    try:
        certified = x509.load_pem_x509_certificate(reply.cert.encode()).public_key()
    except unreadable_certificate() as err:
        raise ConfigError(f"the reply holds no certificate ({err}); ask again") from err
    if certified != key:
        raise ConfigError(f"the reply is for another key than {file}; ask again from this device")
    replace_file(folder / "ca.pem", reply.ca.encode())
    replace_file(folder / "cert.pem", reply.cert.encode())
    replace_file(folder / "bundle.json", msgspec.json.format(msgspec.json.encode(reply.info)))
    return reply


def _ask(where: tuple[str, int], context: ssl.SSLContext, method: str, path: str, body: bytes | None = None) -> bytes:
    connection = http.client.HTTPSConnection(*where, context=context, timeout=TIMEOUT_S)
    try:
        connection.request(method, path, body=body)
        response = connection.getresponse()
        data = response.read(MAX_BYTES)
    except (OSError, http.client.HTTPException) as err:
        raise LinkError(
            f"the authority at {where[0]}:{where[1]} cannot be asked ({err}); is `fedwright server enroll --listen` "
            "running there?"
        ) from err
    finally:
        connection.close()
    if response.status != http.client.OK:
        raise LinkError(f"the authority refused: {data.decode(errors='replace').strip()[:500]}")
    return data
