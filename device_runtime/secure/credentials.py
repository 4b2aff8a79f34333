"""How a device shows its peers in a sum who it is, and how it knows them."""

import ssl
from typing import Protocol

from fedwright.protocol.link.security import Bundle
from fedwright.protocol.secure.roster import Certificates


class SumCredentials(Protocol):
    """A device's own word, and a check of others' words."""

    @property
    def certificate(self) -> bytes:
        """The own certificate (DER); empty without enrolment."""
        ...

    def sign(self, message: bytes) -> bytes:
        """The own signature; empty without enrolment."""
        ...

    def check(self, device: str, certificate: bytes, message: bytes, signature: bytes) -> None:
        """Raise ProtocolError unless the device of this name signed the message."""
        ...


class Unenrolled:
    """Nobody is known: sums hide changes from those who keep to the protocol only."""

    certificate = b""

    def sign(self, message: bytes) -> bytes:
        """Nothing to sign with."""
        del message
        return b""

    def check(self, device: str, certificate: bytes, message: bytes, signature: bytes) -> None:
        """Everybody's word is taken."""


class Enrolled:
    """The certificate of a bundle; peers must have one of the same authority. Its files are read at the first sum."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle
        self._peers: Certificates | None = None

    @property
    def certificate(self) -> bytes:
        """Of this device."""
        return ssl.PEM_cert_to_DER_cert(self._bundle.cert.read_text())

    def sign(self, message: bytes) -> bytes:
        """With the key of the certificate."""
        return self._bundle.sign(message)

    def check(self, device: str, certificate: bytes, message: bytes, signature: bytes) -> None:
        """By a certificate of the fleet's authority, good at this time."""
        if self._peers is None:
            self._peers = Certificates(self._bundle.ca.read_bytes())
        self._peers.check(device, certificate, message, signature)
