"""How a run adds up changes that it may not see."""

from dataclasses import dataclass

from fedwright.protocol.secure.graph import LEAST_DEVICES


@dataclass(frozen=True)
class SecureOptions:
    """least: devices in a sum. reach: largest entry of a change. clip_norm: of a device's change, held by the device.

    authority: the certificate (PEM) that members' certificates are checked by; empty where nobody is enrolled.
    """

    least: int = LEAST_DEVICES
    reach: float = 8.0
    clip_norm: float | None = None
    authority: bytes = b""
