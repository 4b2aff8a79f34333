"""Hypothesis strategies for message types, read off their annotations, so that a new field is fuzzed at once."""

import types
from functools import cache
from string import ascii_letters, digits
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from hypothesis import strategies as st

# The patterns of Sha256 and Id, which from_regex makes slowly.
_FAST = {
    r"^[0-9a-f]{64}$": st.binary(min_size=32, max_size=32).map(bytes.hex),
    r"^[A-Za-z0-9_.\-]+$": st.text(ascii_letters + digits + "_.-", min_size=1, max_size=64),
}
# Lists of chunk hashes and the like may be long; what breaks does so with a few.
MAX_ITEMS = 4
MAX_BYTES = 64


@cache
def of_type(kind: Any) -> st.SearchStrategy[Any]:
    """Values of an annotated type that pass its own limits."""
    return _of(kind, msgspec.Meta())


def _of(kind: Any, limits: msgspec.Meta) -> st.SearchStrategy[Any]:
    origin = get_origin(kind)
    if origin is Annotated:
        inner, meta, *_ = get_args(kind)
        return _of(inner, meta)
    if origin is Literal:
        return st.sampled_from(get_args(kind))
    if origin in (types.UnionType, Union):
        return st.one_of([_of(part, msgspec.Meta()) for part in get_args(kind)])
    if origin is list:
        return st.lists(of_type(get_args(kind)[0]), min_size=limits.min_length or 0, max_size=MAX_ITEMS)
    if origin is dict:
        key, value = get_args(kind)
        return st.dictionaries(of_type(key), of_type(value), max_size=MAX_ITEMS)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints = get_type_hints(kind, include_extras=True)
        return st.builds(
            kind, **{name: of_type(hint) for name, hint in hints.items() if name in kind.__struct_fields__}
        )
    return _plain(kind, limits)


def _plain(kind: Any, limits: msgspec.Meta) -> st.SearchStrategy[Any]:
    if kind is type(None):
        return st.none()
    if kind is bool:
        return st.booleans()
    if kind is int:
        top = limits.le if limits.le is not None else (limits.lt - 1 if limits.lt is not None else 2**63 - 1)
        return st.integers(int(limits.ge if limits.ge is not None else -(2**63)), int(top))
    if kind is float:
        return st.floats(
            min_value=limits.gt if limits.ge is None else limits.ge,
            max_value=limits.lt if limits.le is None else limits.le,
            exclude_min=limits.gt is not None,
            exclude_max=limits.lt is not None,
            allow_nan=False,
            allow_infinity=False,
        )
    if kind in (bytes, memoryview):
        size = {"min_size": limits.min_length or 0, "max_size": min(limits.max_length or MAX_BYTES, MAX_BYTES)}
        return st.binary(**size).map(kind)
    if kind is str:
        if limits.pattern in _FAST:
            return _FAST[limits.pattern]
        if limits.pattern is not None:
            return st.from_regex(limits.pattern.rstrip("$") + r"\Z").filter(
                lambda text: len(text) <= (limits.max_length or len(text))
            )
        return st.text(min_size=limits.min_length or 0, max_size=min(limits.max_length or MAX_BYTES, MAX_BYTES))
    raise TypeError(f"no strategy for {kind}")
