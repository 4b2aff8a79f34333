"""Labels as numbers from 0, and the names of their classes where the data has any."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedwright.device_runtime.data.local import Array, Labels, Raw
from fedwright.protocol.class_names import checked_names
from fedwright.protocol.errors import DataError

# What a report can carry; a larger label is a mistake, not a class.
MAX_CLASSES = 1_000_000


def numbered(raw: Raw, *, where: str) -> tuple[list[Labels], tuple[str, ...]]:
    """The labels of each part of the data as numbers, and the names that belong to them (none for plain numbers).

    Text labels are numbered by their place in the names that the data lists, else by the alphabet.
    """
    parts = [raw.y] if raw.y_holdout is None else [raw.y, raw.y_holdout]
    names = checked_names(raw.class_names, where=where)
    texts = [part for part in parts if part.dtype.kind in "US"]
    if not texts:
        return [_whole(part, where=where) for part in parts], names
    if len(texts) < len(parts):
        raise DataError(f"{where}: only one of y and y_holdout holds names; give both names or both numbers")
    words = [_words(part, where=where) for part in parts]
    if not names:
        names = checked_names(sorted(set(np.concatenate(words).tolist())), where=where)
    return [_placed(part, names, where=where) for part in words], names


def count_classes(declared: int | None, labels: Sequence[Labels], *, where: str) -> int:
    """How many classes there are: as declared, else up to the highest label; DataError for a label beyond them."""
    lowest, highest = min(int(part.min(initial=0)) for part in labels), max(int(part.max(initial=0)) for part in labels)
    classes = highest + 1 if declared is None else declared
    if classes > MAX_CLASSES:
        raise DataError(
            f"{where}: {classes} classes are more than {MAX_CLASSES}; number the labels from 0 without gaps"
        )
    if lowest < 0 or highest >= classes:
        bad = lowest if lowest < 0 else highest
        raise DataError(f"{where}: label {bad} is out of range; {classes} classes are numbered 0 to {classes - 1}")
    return classes


def texts_of(array: Array, *, where: str) -> list[str]:
    """An array of text as Python reads it."""
    try:
        return [text.decode("utf-8") if isinstance(text, bytes) else str(text) for text in array.tolist()]
    except UnicodeDecodeError as err:
        raise DataError(f"{where}: holds names that are not UTF-8 text ({err})") from err


def _whole(y: Array, *, where: str) -> Labels:
    _check_flat(y, where=where)
    if y.dtype.kind == "f" and np.isfinite(y).all() and (y == np.floor(y)).all():
        return y.astype(np.int64)
    if y.dtype.kind not in "iu":
        raise DataError(f"{where}: labels are {y.dtype}, not integers; number the classes from 0 or give their names")
    return y.astype(np.int64)


def _words(y: Array, *, where: str) -> NDArray[np.str_]:
    _check_flat(y, where=where)
    texts = texts_of(y, where=where)
    # In one spelling, as the names are.
    spelled = {text: checked_names([text], where=where)[0] for text in set(texts)}
    return np.array([spelled[text] for text in texts], np.str_)


def _placed(words: NDArray[np.str_], names: Sequence[str], *, where: str) -> Labels:
    place = {name: number for number, name in enumerate(names)}
    unknown = sorted(set(words.tolist()) - place.keys())
    if unknown:
        raise DataError(f"{where}: the label {unknown[0]!r} is not in its list of classes; add it there")
    return np.array([place[word] for word in words.tolist()], np.int64)


def _check_flat(y: Array, *, where: str) -> None:
    if y.ndim != 1:
        raise DataError(
            f"{where}: y has shape {list(y.shape)}; give one label per sample, of one-hot rows y.argmax(axis=1)"
        )
