"""What a device's training depends on, as its owner set it."""

from msgspec import Struct

from fedwright.device_runtime.guard import Limits
from fedwright.device_runtime.policy import Policy


class EquipmentSettings(Struct, frozen=True):
    """What training depends on, whichever process does it; `folder` is the device's own, `state` all devices'."""

    data: str
    folder: str
    state: str
    holdout_ratio: float
    backend: str = "portable"
    provider: str = "cpu"
    threads: int = 0
    noise_ratio: float = 0.0
    most_temperature_c: float | None = None
    least_battery_ratio: float | None = None
    most_load_ratio: float | None = None
    policy: Policy = Policy()


def limits_of(settings: EquipmentSettings) -> Limits:
    """When training pauses: by the command line and by the policy, whichever is stricter."""
    policy = settings.policy
    batteries = [settings.least_battery_ratio, policy.least_battery_ratio]
    return Limits(
        _least(settings.most_temperature_c, policy.most_temperature_c),
        max((ratio for ratio in batteries if ratio is not None), default=None),
        _least(settings.most_load_ratio, policy.most_load_ratio),
        policy.may_work if policy.hours else None,
    )


def _least(*limits: float | None) -> float | None:
    return min((limit for limit in limits if limit is not None), default=None)
