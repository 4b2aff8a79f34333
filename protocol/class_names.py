"""Names of classes, and how one side's order of them becomes the other's."""

import unicodedata
from collections.abc import Iterable, Sequence

from fedwright.protocol.errors import DataError

# What travels with every report and task, so that it stays a small message; the types in `messages` allow no more.
MAX_NAMES = 10_000
MAX_NAME_CHARS = 200
MAX_NAMES_BYTES = 64 * 1024


def checked_names(names: Iterable[str], *, where: str) -> tuple[str, ...]:
    """The names in one spelling; DataError for one that is empty, too long or there twice, or for too many."""
    # File systems spell an accented letter in two ways, which must not make two classes of one.
    found = tuple(unicodedata.normalize("NFC", str(name)).strip() for name in names)
    for name in found:
        if not 0 < len(name) <= MAX_NAME_CHARS:
            raise DataError(f"{where}: the class name {name[:20]!r} must have 1 to {MAX_NAME_CHARS} letters")
    if len(set(found)) < len(found):
        twice = sorted(name for name in set(found) if found.count(name) > 1)
        raise DataError(f"{where}: the class {twice[0]!r} is there twice; give every class a name of its own")
    size_bytes = sum(len(name.encode("utf-8", "replace")) for name in found)
    if len(found) > MAX_NAMES or size_bytes > MAX_NAMES_BYTES:
        raise DataError(
            f"{where}: {len(found)} class names of {size_bytes} bytes are more than the {MAX_NAMES} names or "
            f"{MAX_NAMES_BYTES} bytes that travel with a task; number such classes from 0"
        )
    return found


def places_in(names: Sequence[str], own: Sequence[str]) -> list[int]:
    """Where each of the own names stands in `names`; DataError for the first that does not."""
    place = {name: number for number, name in enumerate(names)}
    missing = [name for name in own if name not in place]
    if missing:
        raise DataError(f"the class {missing[0]!r} is none of the run's classes ({shown(names)})")
    return [place[name] for name in own]


def shown(names: Sequence[str], *, most: int = 8) -> str:
    """The names for a sentence, the first few of many."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
