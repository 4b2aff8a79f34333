"""A device without data that says which classes it will meet: `classes:3,7`, or by their names, `classes:cat,dog`.

It trains nothing and measures nothing; methods that write models from classes alone make it one.
"""

import numpy as np

from fedwright.device_runtime.data.local import LocalData
from fedwright.protocol.class_names import checked_names
from fedwright.protocol.errors import DataError

CLASSES = "classes"
MAX_CLASSES = 1_000_000


def only_classes(text: str) -> LocalData:
    """What a device holds that knows its classes only, as a comma-separated list of numbers or of names."""
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise DataError(f"the classes {text!r} must be numbers or names between commas, such as 3,7 or cat,dog")
    where = f"{CLASSES}:{text}"
    names = checked_names(words, where=where)
    if not all(word.isdecimal() for word in words):
        return _nothing((1,) * len(names), names)
    numbers = [int(word) for word in words]
    if max(numbers) >= MAX_CLASSES:
        raise DataError(f"{where}: class {max(numbers)} is beyond {MAX_CLASSES - 1}; number the classes from 0")
    return _nothing(tuple(int(number in numbers) for number in range(max(numbers) + 1)), ())


def _nothing(held: tuple[int, ...], names: tuple[str, ...]) -> LocalData:
    x, y = np.zeros((0,), np.float32), np.zeros((0,), np.int64)
    return LocalData(x, y, x, y, classes=len(held), class_counts=held, input_shape=(), class_names=names)
