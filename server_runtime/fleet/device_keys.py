"""The public keys of enrolled devices and edges, by the certificates that they were given and that are not void."""

import datetime
import time
from collections.abc import Callable
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

from fedwright.protocol.crypto.device_signing import is_signed_by
from fedwright.server_runtime.fleet.revocation import CRL, LOOK_S

CERTIFICATES = "certificates"


def certificates_of(folder: Path, name: str) -> list[x509.Certificate]:
    """The certificates made for a name that are here, void ones too; the youngest last."""
    files = {folder / kind / name / "cert.pem" for kind in ("devices", "edges")}
    files |= set((folder / CERTIFICATES / name).glob("*.pem"))
    found = {x509.load_pem_x509_certificate(file.read_bytes()) for file in files if file.exists()}
    return sorted(found, key=lambda cert: cert.not_valid_before_utc)


def void_serials(folder: Path) -> set[int]:
    """Serial numbers of certificates that were revoked."""
    file = folder / "broker" / CRL
    return {entry.serial_number for entry in x509.load_pem_x509_crl(file.read_bytes())} if file.exists() else set()


class DeviceKeys:
    """Checks what devices signed; looks again from time to time, because devices come and go while a run goes on."""

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = folder
        self._clock = clock
        self._known: dict[str, tuple[float, list[EllipticCurvePublicKey]]] = {}

    def verify(self, device: str, message: bytes, signature: bytes) -> bool:
        """Whether a device signed a message with a key whose certificate is good now."""
        return any(is_signed_by(key, message, signature) for key in self._keys(device))

    def _keys(self, device: str) -> list[EllipticCurvePublicKey]:
        looked_s, keys = self._known.get(device, (float("-inf"), []))
        if self._clock() - looked_s >= LOOK_S:
            keys = self._read(device)
            self._known[device] = (self._clock(), keys)
        return keys

    def _read(self, device: str) -> list[EllipticCurvePublicKey]:
        now, void = datetime.datetime.now(datetime.timezone.utc), void_serials(self._folder)
        good = [
            cert.public_key()
            for cert in certificates_of(self._folder, device)
            if cert.serial_number not in void and cert.not_valid_after_utc > now
        ]
        return [key for key in good if isinstance(key, EllipticCurvePublicKey)]
