"""Device profiles and fleets read from the package's TOML files."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import resources
from itertools import chain, cycle, islice, repeat
from typing import Any, Literal

from fedwright.protocol.errors import ConfigError
from fedwright.protocol.link.shaping import Shape
from fedwright.protocol.support.settings import check_range, from_dict, suggest
from fedwright.protocol.topics import check_name

# One x86-64 core with AVX2 near 2.7 GHz at 70 % of its peak, in single precision.
REFERENCE_CORE_GFLOPS = 60.0
# Below a tenth of a core an agent needs half a minute just to import its libraries.
MIN_SHARE = 0.1

Folder = Literal["devices", "fleets"]


@dataclass(frozen=True)
class ProfileValue:
    """A number with what it rests on."""

    value: float
    basis: Literal["nominal", "derived", "measured"]
    source: str

    def __post_init__(self) -> None:
        """Check values."""
        check_range("value", self.value, above=0)
        if not self.source:
            raise ConfigError("source is empty; say where the number comes from")


@dataclass(frozen=True)
class DeviceProfile:
    """What a kind of device is made of; `cpu_gflops` counts all cores, single precision; `short` begins device ids."""

    name: str
    summary: str
    short: str
    cores: ProfileValue
    clock_hz: ProfileValue
    ram_bytes: ProfileValue
    agent_bytes: ProfileValue
    cpu_gflops: ProfileValue
    gpu_gflops: ProfileValue | None = None
    copy_bytes_per_s: ProfileValue | None = None
    shrinkage_ratio: ProfileValue | None = None
    link_bytes_per_s: ProfileValue | None = None
    link_delay_s: ProfileValue | None = None
    link_loss_ratio: ProfileValue | None = None
    # Mean time between two losses of power, and how long each lasts.
    up_s: ProfileValue | None = None
    away_s: ProfileValue | None = None

    @property
    def cpu_share(self) -> float:
        """The share of one core of this machine that makes an agent about as fast as the device."""
        return min(1.0, max(MIN_SHARE, self.cpu_gflops.value / REFERENCE_CORE_GFLOPS))

    def __post_init__(self) -> None:
        """Check values."""
        check_name(self.short, what="short")

    @property
    def link(self) -> Shape | None:
        """What the device's way to the broker lets through; None where the profile does not say."""
        rate, delay, loss = self.link_bytes_per_s, self.link_delay_s, self.link_loss_ratio
        if rate is None and delay is None and loss is None:
            return None
        return Shape(
            bytes_per_s=None if rate is None else rate.value,
            delay_s=0.0 if delay is None else delay.value,
            loss_ratio=0.0 if loss is None else loss.value,
        )

    @property
    def memory_bytes(self) -> int:
        """The limit on the agent's data."""
        return int(self.agent_bytes.value)


@dataclass(frozen=True)
class FleetMember:
    """So many devices of one kind; up_s and away_s say how often they lose their power here and for how long."""

    profile: str
    count: int = 1
    up_s: float | None = None
    away_s: float | None = None

    def __post_init__(self) -> None:
        """Check values."""
        check_range("count", self.count, low=1, high=10_000)
        if (self.up_s is None) != (self.away_s is None):
            raise ConfigError("up_s and away_s belong together; give both, or neither")
        for name in ("up_s", "away_s"):
            if getattr(self, name) is not None:
                check_range(name, getattr(self, name), above=0)


@dataclass(frozen=True)
class FleetProfile:
    """A mix of devices."""

    name: str
    summary: str
    members: tuple[FleetMember, ...]

    def __post_init__(self) -> None:
        """Check values."""
        if not self.members:
            raise ConfigError("members is empty; add at least one [[members]] table")

    def profiles(self, devices: int | None = None) -> Iterator[str]:
        """The profile of each device in turn; `devices` cuts the mix short or goes through it again."""
        return (kind.name for kind in self.kinds(devices))

    def kinds(self, devices: int | None = None) -> Iterator[DeviceProfile]:
        """What each device in turn is, with what the fleet says of its power."""
        found = list(chain.from_iterable(repeat(self._kind(member), member.count) for member in self.members))
        return islice(cycle(found), len(found) if devices is None else devices)

    def _kind(self, member: FleetMember) -> DeviceProfile:
        profile = load_profile(member.profile)
        if member.up_s is None or member.away_s is None:
            return profile
        up, away = (ProfileValue(seconds, "nominal", f"fleet {self.name}") for seconds in (member.up_s, member.away_s))
        return replace(profile, up_s=up, away_s=away)


def names(folder: Folder) -> list[str]:
    """The profiles or fleets there are."""
    files = resources.files("fedwright.profiles").joinpath(folder).iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))


def load_profile(name: str) -> DeviceProfile:
    """One device profile by name."""
    return from_dict(DeviceProfile, {"name": name, **_read("devices", name)}, where=f"profile {name}")


def load_fleet(name: str) -> FleetProfile:
    """One fleet by name."""
    return from_dict(FleetProfile, {"name": name, **_read("fleets", name)}, where=f"fleet {name}")


def _read(folder: Folder, name: str) -> dict[str, Any]:
    # Only hosts emulate; the agent itself also runs on Python 3.10, which has no tomllib.
    import tomllib

    known = names(folder)
    if name not in known:
        raise ConfigError(f"there is no {folder.removesuffix('s')} profile {name!r}; {suggest(name, known)}")
    text = resources.files("fedwright.profiles").joinpath(folder, f"{name}.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)
