"""Device profiles and fleets in TOML files: ours, those of other packages, or any file by its path."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from importlib.util import find_spec
from itertools import chain, cycle, islice, repeat
from pathlib import Path
from typing import Any, Literal

from fedwright.protocol.errors import ConfigError
from fedwright.protocol.link.shaping import Shape
from fedwright.protocol.support import plugins
from fedwright.protocol.support.settings import check_range, from_dict, suggest
from fedwright.protocol.support.toml import BadToml, read_toml
from fedwright.protocol.topics import check_name

# One x86-64 core with AVX2 near 2.7 GHz at 70 % of its peak, in single precision.
REFERENCE_CORE_GFLOPS = 60.0
# Below a tenth of a core an agent needs half a minute just to import its libraries.
MIN_SHARE = 0.1

OURS = "fedwright"
SUFFIX = ".toml"
_log = logging.getLogger(__name__)

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
    return sorted(_files(folder))


def package_of(folder: Folder, name: str) -> str:
    """The package that a profile or fleet comes from."""
    return _files(folder)[name][0]


def load_profile(name: str) -> DeviceProfile:
    """One device profile by name, or by the path of its TOML file."""
    return from_dict(DeviceProfile, {"name": name, **_read("devices", name)}, where=f"profile {name}")


def load_fleet(name: str) -> FleetProfile:
    """One fleet by name, or by the path of its TOML file, beside which its members' own files lie."""
    found = from_dict(FleetProfile, {"name": name, **_read("fleets", name)}, where=f"fleet {name}")
    if not name.endswith(SUFFIX):
        return found
    return replace(found, members=tuple(_beside(Path(name), member) for member in found.members))


def _beside(fleet: Path, member: FleetMember) -> FleetMember:
    if not member.profile.endswith(SUFFIX):
        return member
    return replace(member, profile=str(fleet.parent / Path(member.profile).expanduser()))


def _files(folder: Folder) -> dict[str, tuple[str, Path]]:
    """Package and file of every profile or fleet by name; a name that two packages use is the first one's."""
    found: dict[str, tuple[str, Path]] = {}
    for package, root in _roots():
        for file in sorted(root.joinpath(folder).glob(f"*{SUFFIX}")):
            if file.stem in found:
                _say_taken(folder, file.stem, package, found[file.stem][0])
            else:
                found[file.stem] = (package, file)
    return found


def _roots() -> Iterator[tuple[str, Path]]:
    """Our own folder, then those that other packages offer; they are looked at without importing anything."""
    yield OURS, Path(str(resources.files("fedwright.profiles")))
    for plugin in plugins.offered(plugins.PROFILES, taken=()):
        top, *inner = plugin.module.split(".")
        spec = find_spec(top)
        places = [Path(place, *inner) for place in (spec and spec.submodule_search_locations) or ()]
        root = next((place for place in places if place.is_dir()), None)
        if root is None:
            _say_absent(plugin)
        else:
            yield plugin.package, root


@cache
def _say_absent(plugin: plugins.Plugin) -> None:
    # No error: all other profiles can still be used.
    _log.warning("%s", plugin.problem(f"there is no folder {plugin.module}; its package must hold devices or fleets"))


@cache
def _say_taken(folder: Folder, name: str, package: str, owner: str) -> None:
    _log.warning(
        "profile %s/%s of the package %s is not used: %s has one of that name; name the path of its file to use it",
        folder,
        name,
        package,
        owner,
    )


def _read(folder: Folder, name: str) -> dict[str, Any]:
    known = _files(folder)
    if not name.endswith(SUFFIX) and name not in known:
        what = folder.removesuffix("s")
        raise ConfigError(f"there is no {what} profile {name!r}; {suggest(name, known)}, or the path of a TOML file")
    file = Path(name).expanduser() if name.endswith(SUFFIX) else known[name][1]
    try:
        return read_toml(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, BadToml) as err:
        raise ConfigError(f"profile {file} cannot be read ({err}); give the path of a TOML file") from err
