"""TOML of any source, read in time that grows with its length alone."""

import importlib
import re
import sys
from typing import Any

# A reader of TOML goes through all parts of a dotted key once for each of them.
MOST_PARTS = 32
_PART = r"""(?:[\w-]+|"[^"\n]*"|'[^'\n]*')"""
_LONG_KEY = re.compile(rf"(?<![\w-])(?:{_PART}[ \t]*\.[ \t]*){{{MOST_PARTS}}}")
_MOST_CHARACTERS = 4 * 1024 * 1024


class BadToml(ValueError):
    """A text is no TOML, or none that anybody would write."""


def read_toml(text: str) -> dict[str, Any]:
    """The tables of a text; BadToml says what is wrong with it."""
    if len(text) > _MOST_CHARACTERS:
        raise BadToml(f"it has {len(text)} characters, more than {_MOST_CHARACTERS}")
    if found := _LONG_KEY.search(text):
        line = text.count("\n", 0, found.start()) + 1
        raise BadToml(f"more than {MOST_PARTS} names with dots between them (at line {line})")
    # Python 3.10 has no tomllib; the [device] extra brings its twin there.
    reader = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        tables: dict[str, Any] = reader.loads(text)
    # A number of more digits than Python reads is a plain ValueError.
    except (ValueError, RecursionError) as err:
        raise BadToml(str(err)) from err
    return tables
