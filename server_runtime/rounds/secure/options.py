"""How a run adds up changes that it may not see."""

from dataclasses import dataclass, replace
from pathlib import Path

from fedwright.protocol.secure.graph import LEAST_DEVICES, NEIGHBOURS, THRESHOLD
from fedwright.server_runtime.config import RunConfig
from fedwright.server_runtime.fleet.trust import Authority
from fedwright.server_runtime.rounds.privacy.round_privacy import multiplier_of


@dataclass(frozen=True)
class SecureOptions:
    """least: devices in a sum. reach: largest entry of a change. clip_norm: of a device's change, held by the device.

    noise_multiplier: how many times clip_norm the noise of a sum is, of which each device adds its share.
    neighbours, threshold: of a sum (protocol/secure/graph.py).
    authority: the certificate (PEM) that members' certificates are checked by; empty where nobody is enrolled.
    """

    least: int = LEAST_DEVICES
    reach: float = 8.0
    clip_norm: float | None = None
    authority: bytes = b""
    noise_multiplier: float | None = None
    neighbours: int = NEIGHBOURS
    threshold: float = THRESHOLD


def secure_options(config: RunConfig) -> SecureOptions:
    """As a config says."""
    update, trust = config.update, config.fleet.trust
    authority = b"" if trust is None else Authority(Path(trust)).ca.read_bytes()
    options = SecureOptions(
        update.secure_least,
        update.secure_range,
        update.clip_norm,
        authority,
        neighbours=update.secure_neighbours,
        threshold=update.secure_threshold,
    )
    if config.privacy.kind != "distributed":
        return options
    return replace(options, clip_norm=config.privacy.clip, noise_multiplier=multiplier_of(config))
