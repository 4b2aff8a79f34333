"""Which test files run together, and in which order: unit tests first, then contracts, then end-to-end."""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

TESTS = Path("tests")
DURATIONS = TESTS / "durations.json"
TIERS = {"contracts": 1, "e2e": 2}
# Each process pays for its imports, each crash for the files it shares a process with.
GROUP_S = 45.0
GROUP_FILES = 24
UNKNOWN_S = 2.0
VALUE_OPTIONS = {"-k", "-m", "-p", "-o", "-c", "-W", "-r", "--deselect", "--ignore", "--tb", "--timeout", "--durations"}


@dataclass(frozen=True)
class Group:
    """Files for one process; a target is a file or a test inside it, as given to pytest."""

    targets: tuple[str, ...]
    tier: int
    seconds: float

    @property
    def files(self) -> tuple[str, ...]:
        """The targets' files, each once."""
        return tuple(dict.fromkeys(file_of(target) for target in self.targets))

    def without(self, files: Iterable[str]) -> "Group":
        """The same group but for some files."""
        gone = set(files)
        return Group(tuple(t for t in self.targets if file_of(t) not in gone), self.tier, self.seconds)


def file_of(target: str) -> str:
    """The file a test is in."""
    return target.partition("::")[0]


def tier(file: Path) -> int:
    """0 for units, 1 for contracts, 2 for end-to-end; the file's path is seen from the tests' folder."""
    return TIERS.get(file.parts[0], 0)


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """(paths, options): what names a file or folder is a path, unless an option that takes a value stands before it."""
    paths: list[str] = []
    options: list[str] = []
    before = ""
    for argument in arguments:
        is_option = argument.startswith("-") or before in VALUE_OPTIONS
        exists = Path(file_of(argument)).exists()
        if not is_option and not exists and ("/" in argument or file_of(argument).endswith(".py")):
            raise FileNotFoundError(f"there is no {file_of(argument)}; name files or folders of tests")
        (options if is_option or not exists else paths).append(argument)
        before = argument
    return paths, options


def find_targets(paths: Sequence[str]) -> list[str]:
    """Test files below the given paths, and the single tests among these, as seen from the current folder."""
    found: list[str] = []
    for path in paths or [str(TESTS)]:
        file, marks, test = path.partition("::")
        inside = sorted(Path(file).rglob("test_*.py")) if Path(file).is_dir() else [file]
        found += [os.path.relpath(one) + marks + test for one in inside]
    return list(dict.fromkeys(found))


def read_durations(path: Path = DURATIONS) -> dict[str, float]:
    """Seconds of each file in an earlier run; without them groups are only less well balanced."""
    if not path.exists():
        return {}
    return {file: float(seconds) for file, seconds in json.loads(path.read_text()).items()}


def make_groups(targets: Sequence[str], durations: Mapping[str, float]) -> list[Group]:
    """Neighbouring files share a process up to a length, long ones have one each; in every tier the longest first."""
    groups: list[Group] = []
    for number, members in groupby(sorted(targets, key=_tier_of), key=_tier_of):
        files = [(file, tuple(those)) for file, those in groupby(members, key=file_of)]
        groups += _packed(number, files, durations)
    return sorted(groups, key=lambda group: (group.tier, -group.seconds))


def _tier_of(target: str) -> int:
    path = Path(file_of(target))
    return tier(path.relative_to(TESTS) if path.is_relative_to(TESTS) else path)


def _packed(
    number: int, files: Sequence[tuple[str, tuple[str, ...]]], durations: Mapping[str, float]
) -> Iterable[Group]:
    targets: tuple[str, ...] = ()
    count, total_s = 0, 0.0
    for file, members in files:
        seconds = durations.get(file, UNKNOWN_S)
        if seconds >= GROUP_S:
            yield Group(members, number, seconds)
            continue
        if count == GROUP_FILES or (targets and total_s + seconds > GROUP_S):
            yield Group(targets, number, total_s)
            targets, count, total_s = (), 0, 0.0
        targets, count, total_s = targets + members, count + 1, total_s + seconds
    if targets:
        yield Group(targets, number, total_s)
