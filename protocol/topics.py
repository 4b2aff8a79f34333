"""Topic names: a device publishes only below `up/<id>` and reads only `down/<id>` and `shared`, but for its probe."""

import re

from fedwright.protocol.errors import ConfigError

# Names become folders too, so that those which lead out of one are none.
_NAME = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9_.\-]{1,64}")


def check_name(name: str, *, what: str) -> str:
    """Return `name` if it may stand in a topic, else say why not."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{what} {name!r} must be 1 to 64 of the characters A-Z a-z 0-9 _ . -, and not . or ..")
    return name


def of_fleet(fleet: str) -> str:
    """What all topics of a fleet begin with."""
    return f"fedwright/{fleet}/"


def up(fleet: str, device: str) -> str:
    """Where a device speaks to the server."""
    return f"fedwright/{fleet}/up/{device}"


def up_all(fleet: str) -> str:
    """What the server listens to."""
    return f"fedwright/{fleet}/up/+"


def down(fleet: str, device: str) -> str:
    """Where the server speaks to one device."""
    return f"fedwright/{fleet}/down/{device}"


def shared(fleet: str) -> str:
    """Where the server speaks to all devices at once."""
    return f"fedwright/{fleet}/shared"


def probe(device: str) -> str:
    """Where a device speaks to itself, to learn how fast its link is."""
    return f"fedwright/probe/{device}"


def device_of(topic: str) -> str:
    """The device that published on an `up` topic."""
    return topic.rsplit("/", 1)[-1]
