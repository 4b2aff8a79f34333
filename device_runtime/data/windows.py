"""Readers of what has an order: tables with numbers to predict, series cut in windows, text as bytes."""

import csv
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fedwright.device_runtime.data.local import Array, Raw
from fedwright.device_runtime.data.tables import existing
from fedwright.protocol.errors import DataError

# Of a series the end is held out: windows from its middle would overlap those that train.
HELD_OUT = 0.2
BYTES = 256


def read_series(place: str, options: dict[str, str]) -> Raw:
    """A csv table whose `targets` (columns, by name) are predicted from the others.

    With `window` and `horizon` the rows are moments in their order: from so many rows, the targets of the next ones.
    """
    header, table = _numbers(place)
    wanted = [name.strip() for name in options.pop("targets", header[-1]).split(",")]
    missing = [name for name in wanted if name not in header]
    if missing:
        raise DataError(f"{place}: has no column {missing[0]!r}; it has {', '.join(header[:20])}")
    columns = [header.index(name) for name in wanted]
    if "window" not in options:
        rest = [at for at in range(len(header)) if at not in columns]
        if not rest:
            raise DataError(f"{place}: all columns are targets; leave some to predict them from")
        return Raw(table[:, rest], table[:, columns])
    window, horizon = _length(options, "window", place), _length(options, "horizon", place)
    starts = np.arange(len(table) - window - horizon + 1)
    if len(starts) < 2:
        raise DataError(f"{place}: {len(table)} rows are too few for windows of {window} and {horizon} to predict")
    x = np.stack([table[start : start + window] for start in starts])
    y = np.stack([table[start + window : start + window + horizon, columns].reshape(-1) for start in starts])
    return _end_held_out(x, y, window + horizon)


def read_text(place: str, options: dict[str, str]) -> Raw:
    """A text file as bytes: each window's next byte at every place."""
    file, window = existing(place), _length(options, "window", place)
    codes = np.frombuffer(file.read_bytes(), np.uint8).astype(np.int64)
    count = (len(codes) - 1) // window
    if count < 2:
        raise DataError(f"{place}: {len(codes)} bytes are too few for two windows of {window}; give more text")
    x, y = codes[: count * window].reshape(count, window), codes[1 : count * window + 1].reshape(count, window)
    return Raw(x, y, classes=BYTES)


def _end_held_out(x: Array, y: Array, span: int) -> Raw:
    """The last windows held out, and those before that share no row with them."""
    first = len(x) - max(1, round(HELD_OUT * len(x)))
    kept = max(1, first - span + 1)
    rows = np.concatenate([np.arange(kept), np.arange(first, len(x))])
    return Raw(x[rows], y[rows], holdout=np.arange(kept, len(rows)))


def _numbers(place: str) -> tuple[list[str], NDArray[np.float32]]:
    """The header and all rows of a table of numbers."""
    with existing(place).open(newline="", encoding="utf-8-sig") as file:
        try:
            reader = csv.reader(file)
            header = [name.strip() for name in next(reader, [])]
            rows = list(_rows(reader, header, place))
        except (csv.Error, UnicodeDecodeError) as err:
            raise DataError(f"{place}: is not a readable csv table ({err})") from err
    if not rows or not header:
        raise DataError(f"{place}: needs a header line and rows of numbers below it")
    return header, np.array(rows, np.float32)


def _rows(reader: Iterator[list[str]], header: list[str], place: str) -> Iterator[list[float]]:
    for line, row in enumerate(reader, start=2):
        if not row:
            continue
        if len(row) != len(header):
            raise DataError(f"{place} line {line}: has {len(row)} columns, the header has {len(header)}")
        try:
            yield [float(cell) for cell in row]
        except ValueError as err:
            raise DataError(f"{place} line {line}: holds something that is not a number ({err})") from err


def _length(options: dict[str, str], name: str, place: str) -> int:
    text = options.pop(name, "")
    if not text.isdecimal() or not 1 <= int(text) <= 1_000_000:
        given = f"{name}={text!r} must be" if text else f"{name} is missing; give it as"
        raise DataError(f"{place}: {given} a whole number from 1 on, as in {place}?{name}=64")
    return int(text)
