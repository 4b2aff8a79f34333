"""The file that keeps what a device measured of itself, one entry for each thing that changes it."""

import json
import os
from pathlib import Path
from typing import Any

import msgspec

from fedwright.device_runtime import facts
from fedwright.protocol.errors import BadMessage, ConfigError
from fedwright.protocol.predictor import Profile, profile_from_json
from fedwright.protocol.support.unreadable import UNREADABLE

PROFILE_NAME = "profile.json"


def save_profile(path: Path, profile: Profile) -> None:
    """Put a profile into a file beside those for other threads, power modes and runtimes."""
    kept = _read(path) if path.exists() else {}
    kept[profile.key] = json.loads(profile.to_json())
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.new")
    draft.write_text(json.dumps({"format": 1, "profiles": kept}, indent=1) + "\n", encoding="utf-8")
    os.replace(draft, path)


def find_profile(path: Path, *, threads: int) -> Profile | None:
    """The profile of this board, runtime, power mode and number of threads; None when it was not measured."""
    if not path.exists():
        return None
    board, health = facts.board(threads=threads), facts.health()
    wanted = Profile(board.model, board.runtime, threads, health.power_mode or "").key
    entry = _read(path).get(wanted)
    return None if entry is None else profile_from_json(json.dumps(entry).encode())


def find_profiles(state: Path, threads: int) -> list[Profile]:
    """What this device measured of itself: for its number of threads, or for one and for all cores."""
    wanted = (threads,) if threads else (1, facts.cores())
    found = [find_profile(state / PROFILE_NAME, threads=count) for count in dict.fromkeys(wanted)]
    return [profile for profile in found if profile is not None]


def _read(path: Path) -> dict[str, Any]:
    try:
        data = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (*UNREADABLE, OSError) as err:
        raise ConfigError(f"{path} is not a profile file ({err}); remove it and measure again") from err
    profiles = data.get("profiles")
    if data.get("format") != 1 or not isinstance(profiles, dict):
        raise BadMessage(f"{path} is a profile file of another release; remove it and measure again")
    return profiles
