"""A board without a clock believes certificates of its own authority; one with a clock looks at their dates."""

import datetime
import socket
import ssl
import threading
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fedwright.protocol.link.mqtt import _tls_context
from fedwright.protocol.link.security import TlsFiles

WAIT_S = 10.0


@pytest.fixture
def files(tmp_path: Path) -> Any:
    """A certificate that signs itself and is good from tomorrow on: what a board sees whose clock is behind."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    tomorrow = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(days=1)
    cert = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(tomorrow)
        .not_valid_after(tomorrow + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (tmp_path / "cert.pem").write_bytes(cert.public_bytes(serialization.Encoding.PEM))
    (tmp_path / "key.pem").write_bytes(key.private_bytes(*pem))
    return tmp_path


def shake_hands(files: Any, context: Any) -> None:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(files / "cert.pem", files / "key.pem")
    ours, theirs = socket.socketpair()

    def serve() -> None:
        try:
            server.wrap_socket(theirs, server_side=True).close()
        except (ssl.SSLError, OSError):
            theirs.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        context.wrap_socket(ours, server_hostname="localhost").close()
    finally:
        ours.close()
        thread.join(WAIT_S)


def test_a_board_in_1970_gets_in(files: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 60.0)

    shake_hands(files, _tls_context(TlsFiles(ca=files / "cert.pem")))


def test_a_board_with_a_clock_looks_at_dates(files: Any) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="not yet valid"):
        shake_hands(files, _tls_context(TlsFiles(ca=files / "cert.pem")))


def test_authorities_of_everybody_are_believed_only_with_a_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 60.0)

    assert not _tls_context(TlsFiles()).verify_flags & 0x200000
