"""Instances of message types, drawn from their annotations, so that a new field is there at once."""

import random
import re
from typing import Any

import msgspec
from msgspec import inspect

MOST_ITEMS = 3
MOST_BYTES = 40
_TEXTS = ("a", "pi-07", "0" * 64, "ab" * 32, "run_1.2", "mqtt://host:1883", "", "ä")


def samples(kind: Any, rng: random.Random, count: int) -> list[Any]:
    """So many instances of an annotated type that pass its own limits."""
    info = inspect.type_info(kind)
    return [_sample(info, rng) for _ in range(count)]


def _sample(info: inspect.Type, rng: random.Random) -> Any:
    if isinstance(info, inspect.UnionType):
        return _sample(rng.choice(info.types), rng)
    if isinstance(info, (inspect.StructType, inspect.DataclassType)):
        return info.cls(**{field.name: _sample(field.type, rng) for field in info.fields})
    if isinstance(info, (inspect.ListType, inspect.VarTupleType, inspect.SetType)):
        least, most = info.min_length or 0, info.max_length
        top = max(least, min(MOST_ITEMS, MOST_ITEMS if most is None else most))
        return [_sample(info.item_type, rng) for _ in range(rng.randint(least, top))]
    if isinstance(info, inspect.DictType):
        return {_sample(info.key_type, rng): _sample(info.value_type, rng) for _ in range(rng.randint(0, MOST_ITEMS))}
    if isinstance(info, inspect.TupleType):
        return tuple(_sample(item, rng) for item in info.item_types)
    if isinstance(info, inspect.LiteralType):
        return rng.choice(info.values)
    return _plain(info, rng)


def _plain(info: inspect.Type, rng: random.Random) -> Any:
    if isinstance(info, inspect.NoneType):
        return None
    if isinstance(info, inspect.BoolType):
        return rng.random() < 0.5
    if isinstance(info, inspect.IntType):
        least = info.ge if info.ge is not None else -1000
        return rng.randint(least, min(least + 1000, least + 1000 if info.le is None else info.le))
    if isinstance(info, inspect.FloatType):
        low = info.ge if info.ge is not None else info.gt if info.gt is not None else -1.0
        return rng.uniform(low, info.le if info.le is not None else low + 10) or 1.0
    if isinstance(info, (inspect.BytesType, inspect.MemoryViewType)):
        least = info.min_length or 0
        data = rng.randbytes(rng.randint(least, max(least, min(MOST_BYTES, info.max_length or MOST_BYTES))))
        return memoryview(data) if isinstance(info, inspect.MemoryViewType) else data
    if isinstance(info, inspect.StrType):
        return rng.choice([text for text in _TEXTS if _fits(text, info)])
    raise msgspec.ValidationError(f"no sample of {info}")


def _fits(text: str, info: inspect.StrType) -> bool:
    if not (info.min_length or 0) <= len(text) <= (info.max_length or len(text)):
        return False
    return info.pattern is None or re.search(info.pattern, text) is not None
