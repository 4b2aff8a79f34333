"""The page over TLS: tokens and certificates of people, told apart by the real server."""

import datetime
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fedwright.server_runtime.page.address import PageSettings
from fedwright.server_runtime.page.people import allow
from fedwright.server_runtime.page.serve import make_server
from helpers.page_runs import write_run
from helpers.scrape import free_port


class Issuer:
    """Makes certificates, each as NAME.pem and NAME.key in a folder."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.file = self._make(name, self._key, is_issuer=True)

    def issue(self, name: str) -> Path:
        """A certificate for a name, and its key beside it."""
        return self._make(name, ec.generate_private_key(ec.SECP256R1()))

    def _make(self, name: str, key: ec.EllipticCurvePrivateKey, *, is_issuer: bool = False) -> Path:
        now = datetime.datetime.now(datetime.timezone.utc)
        made = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=is_issuer, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        file = self.folder / f"{name}.pem"
        file.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        plain = serialization.NoEncryption()
        private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
        file.with_suffix(".key").write_bytes(private)
        return file


@contextmanager
def served(runs: Path, settings: PageSettings) -> Iterator[None]:
    """The page, while the block runs."""
    server = make_server(runs, settings)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started and thread.is_alive():
            thread.join(0.01)
        yield
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture
def page(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """The address of a page for ann by token, bob by certificate, and the folder with all keys."""
    runs = write_run(tmp_path / "runs" / "pets", ["nano", "pi"]).parent
    issuer, people = Issuer(tmp_path, "issuer"), tmp_path / "people.toml"
    own = issuer.issue("server")
    for name in ("bob", "mallory"):
        issuer.issue(name)
    (tmp_path / "token").write_text(allow(people, "ann", "look"))
    allow(people, "bob", "act", certificate="bob")
    address = f"localhost:{free_port()}"
    settings = PageSettings(address, own, own.with_suffix(".key"), people, issuer.file)
    with served(runs, settings):
        yield settings.url, tmp_path


def who(url: str, folder: Path, certificate: str = "", token: str = "") -> str | None:
    """Who the page takes somebody for."""
    context = ssl.create_default_context(cafile=str(folder / "issuer.pem"))
    if certificate:
        context.load_cert_chain(folder / f"{certificate}.pem", folder / f"{certificate}.key")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    found: str | None = httpx2.get(f"{url}api/me", verify=context, headers=headers, trust_env=False).json()["name"]
    return found


def test_people_are_known_by_token_and_by_certificate(page: tuple[str, Path]) -> None:
    url, folder = page

    assert who(url, folder) is None
    assert who(url, folder, certificate="bob") == "bob"
    # A certificate of the same issuer for somebody who is not in the file.
    assert who(url, folder, certificate="mallory") is None
    assert who(url, folder, token=(folder / "token").read_text()) == "ann"


def test_a_certificate_of_another_issuer_opens_nothing(page: tuple[str, Path], tmp_path: Path) -> None:
    url, folder = page
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    Issuer(elsewhere, "issuer").issue("bob")
    for ending in ("pem", "key"):
        (elsewhere / f"bob.{ending}").rename(folder / f"fake.{ending}")

    with pytest.raises((httpx2.HTTPError, ssl.SSLError, OSError)):
        who(url, folder, certificate="fake")
