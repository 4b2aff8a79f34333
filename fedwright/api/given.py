"""What a program hands over itself, under names that a config can hold: `python:fedwright.api.given:NAME`.

Such a name means something in this process alone; a class or function of another module keeps its own place, which a
later process finds too.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fedwright.protocol.errors import FedwrightError

# By name: what was handed over, and what its name means.
_known: dict[str, tuple[object, Any]] = {}


def place_of(thing: Any) -> str | None:
    """Where a later process finds a class or function; None for what lives in a program or inside a function."""
    module, name = getattr(thing, "__module__", "__main__"), getattr(thing, "__qualname__", "")
    lasting = module != "__main__" and bool(name) and all(part.isidentifier() for part in name.split("."))
    return f"python:{module}:{name}" if lasting else None


def keep(thing: object, meaning: Any, *, label: str) -> str:
    """A name for `meaning`; the same thing gets the same name again."""
    # A lambda has a name that is none.
    label = label if label.isidentifier() else "given"
    number = 1
    while (name := label if number == 1 else f"{label}_{number}") in _known and _known[name][0] is not thing:
        number += 1
    _known.setdefault(name, (thing, meaning))
    return f"python:{__name__}:{name}"


@contextmanager
def told_by_label(**places: str) -> Iterator[None]:
    """Errors call what was handed over as a program does, not by the names and places that it has in a config."""
    try:
        yield
    except FedwrightError as err:
        said = str(err)
        for label, place in places.items():
            said = said.replace(place, label) if place else said
        err.args = (said.replace(f"python:{__name__}:", ""), *err.args[1:])
        raise


def __getattr__(name: str) -> Any:
    if name not in _known:
        raise AttributeError(f"this process was handed nothing called {name!r}; pass it to the call again")
    return _known[name][1]
