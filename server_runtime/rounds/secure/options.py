"""How a run adds up changes that it may not see."""

from dataclasses import dataclass
from pathlib import Path

from fedwright.protocol.secure.graph import LEAST_DEVICES
from fedwright.server_runtime.config import RunConfig
from fedwright.server_runtime.fleet.trust import Authority


@dataclass(frozen=True)
class SecureOptions:
    """least: devices in a sum. reach: largest entry of a change. clip_norm: of a device's change, held by the device.

    authority: the certificate (PEM) that members' certificates are checked by; empty where nobody is enrolled.
    """

    least: int = LEAST_DEVICES
    reach: float = 8.0
    clip_norm: float | None = None
    authority: bytes = b""


def secure_options(config: RunConfig) -> SecureOptions:
    """As a config says."""
    update, trust = config.update, config.fleet.trust
    authority = b"" if trust is None else Authority(Path(trust)).ca.read_bytes()
    return SecureOptions(update.secure_least, update.secure_range, update.clip_norm, authority)
