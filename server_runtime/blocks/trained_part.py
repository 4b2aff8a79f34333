"""Words of `[train] trainable` for a part of a model."""

import re

from fedwright.protocol.errors import ConfigError

EVERYTHING, HEAD, BIAS = "all", "head", "bias"
Trainable = str | tuple[str, ...]
_LAST = re.compile(r"last-([1-9]\d{0,3})")
_LORA = re.compile(r"lora-([1-9]\d{0,3})")
HOW = "choose all, head, bias, last-2, lora-8 or a list of patterns such as ['layer4.*']"


def check_trainable(wanted: Trainable) -> None:
    """Raise ConfigError for what names no part of any model."""
    if not wanted:
        raise ConfigError(f"trainable is empty, so that nothing would train; {HOW}")
    known = not isinstance(wanted, str) or wanted in (EVERYTHING, HEAD, BIAS) or last_layers(wanted) or rank(wanted)
    if not known:
        raise ConfigError(f"trainable is {wanted!r}; {HOW}")


def rank(wanted: Trainable) -> int:
    """Of the adapters that are asked for; 0 for none."""
    return _number(_LORA, wanted)


def last_layers(wanted: Trainable) -> int:
    """How many layers at the end; 0 where others are asked for."""
    return _number(_LAST, wanted)


def _number(pattern: re.Pattern[str], wanted: Trainable) -> int:
    found = pattern.fullmatch(wanted) if isinstance(wanted, str) else None
    return int(found[1]) if found else 0
