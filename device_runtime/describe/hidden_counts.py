"""Counts that a device keeps to itself: it takes part in sums that hide them, and says one figure of its own.

The maths and what it protects from are in `protocol/crypto/secure_sum.py`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import structs

from fedwright.protocol.class_names import places_in
from fedwright.protocol.crypto.secure_sum import LEAST_DEVICES, Counts, masked, own_seed, pair_seed, to_bytes
from fedwright.protocol.crypto.x25519 import public_key
from fedwright.protocol.divergence import distribution, divergence
from fedwright.protocol.errors import ConfigError, DeviceError, FedwrightError, ProtocolError
from fedwright.protocol.messages import Answer, Ask, DataSummary, Task
from fedwright.protocol.support.files import replace_file

# Sums of which it is remembered for whom they were opened.
KEEP_OPENED = 256


def without_counts(summary: DataSummary) -> DataSummary:
    """What is told about the data when nothing of its content is; that classes have names, but not which."""
    return structs.replace(
        summary,
        class_counts=None,
        score_counts=None,
        pixel_std=None,
        descriptor=None,
        number_descriptor=None,
        class_names=None if summary.class_names is None else [],
    )


def counts_of(summary: DataSummary) -> list[int]:
    """How many samples of each class a device hides."""
    if not summary.class_counts:
        raise ConfigError("this device has no counts that it could hide; give it labelled data")
    return list(summary.class_counts)


class HiddenCounts:
    """A device's part in secure sums; answers depend on the question alone, so that one may be asked again."""

    def __init__(
        self,
        device: str,
        counts: Sequence[int],
        *,
        secret: bytes,
        folder: Path,
        class_names: Sequence[str] | None = None,
        words: Sequence[int] | None = None,
    ) -> None:
        """counts: by class, called `class_names` where they have names. words: by word, of data that may be text."""
        self._device = device
        self._words = np.asarray(() if words is None else words, np.int64)
        self._counts = np.asarray(counts, np.int64)
        self._class_names = class_names or ()
        self._secret = secret
        self._file = folder / "sums"
        self.public = public_key(secret)

    def check(self, task: Task) -> None:
        """DeviceError for a task whose result would tell the counts that are hidden here, or has other classes."""
        self._check_names(task.class_names)
        what = "asks for class means and their counts" if task.returns.class_means else ""
        if task.recipe.classes is not None:
            # The number of samples that it trained on would be that of those classes.
            what = "asks to train some classes alone"
        if what:
            raise DeviceError(
                f"the task {what}, which this device hides; start the device without --hide-counts or use a method "
                f"that needs neither (FRAMP with align = 0, update.class_means = false)"
            )

    def _check_names(self, run_names: Sequence[str]) -> None:
        # The names are as private as the counts, so the server does not hear which of them it lacks.
        if not set(self._class_names) <= set(run_names):
            raise DeviceError("this device has classes that the run does not list; list all in [model] classes")

    def answer(self, ask: Ask) -> Answer:
        """What the server asks for; a problem instead when it asks for more than is safe."""
        try:
            counts = self._in_order(ask)
            if ask.stage == "score":
                return Answer(ask.sum, "score", score=self._score(ask, counts))
            self._check_keys(ask)
            return self._masked(ask, counts) if ask.stage == "mask" else self._opened(ask)
        except FedwrightError as err:
            return Answer(ask.sum, ask.stage, problem=str(err))

    def offer(self) -> dict[str, Any]:
        """What a report says of this device's part in sums: its key, and how many words they must have room for."""
        return {"sum_key": self.public, "sum_words": len(self._words)}

    def _in_order(self, ask: Ask) -> Counts:
        """The own counts at the places that their classes have in the sum; words are numbered alike everywhere."""
        if ask.words and len(self._words):
            return self._padded(self._words, ask.length)
        if not self._class_names:
            return self._padded(self._counts, ask.length)
        self._check_names(ask.class_names)
        counts = np.zeros(len(ask.class_names), np.int64)
        counts[places_in(ask.class_names, self._class_names)] = self._counts
        return self._padded(counts, ask.length)

    def _padded(self, counts: Counts, length: int) -> Counts:
        if length < len(counts):
            raise ProtocolError(f"the sum has {length} counts but this device has {len(counts)}")
        return np.pad(counts, (0, length - len(counts)))

    def _score(self, ask: Ask, counts: Counts) -> float:
        """h_i = JSD(p_i || p_g)."""
        if len(ask.pooled) != ask.length:
            raise ProtocolError(f"there are {len(ask.pooled)} pooled counts but {ask.length} were announced")
        pooled = distribution(np.asarray(ask.pooled, np.int64), smoothing=ask.smoothing)
        return divergence(distribution(counts, smoothing=ask.smoothing), pooled)

    def _check_keys(self, ask: Ask) -> None:
        if ask.keys.get(self._device) != self.public:
            raise ProtocolError(f"the sum does not have the key of {self._device}; begin it anew")
        if len(ask.keys) < LEAST_DEVICES:
            raise ProtocolError(f"a sum over {len(ask.keys)} devices hides nothing; it takes {LEAST_DEVICES}")
        if len(set(ask.keys.values())) < len(ask.keys):
            raise ProtocolError("two devices of the sum have one key; each must make its own")

    def _masked(self, ask: Ask, counts: Counts) -> Answer:
        seeds = {other: self._pair_seed(ask, other) for other in ask.keys if other != self._device}
        hidden = masked(self._device, counts, own_seed(self._secret, ask.sum), seeds)
        return Answer(ask.sum, "mask", masked=to_bytes(hidden))

    def _opened(self, ask: Ask) -> Answer:
        """The own seed, and those shared with devices that left: never both for the same device by its peers."""
        present = set(ask.present)
        if len(present) < LEAST_DEVICES or self._device not in present or not present <= ask.keys.keys():
            shown = ", ".join(sorted(present)[:5])
            raise ProtocolError(f"a sum over {shown} is not opened; it takes {LEAST_DEVICES} of its devices")
        self._remember(ask.sum, sorted(present))
        gone = ask.keys.keys() - present
        pairs = {other: self._pair_seed(ask, other) for other in sorted(gone)}
        return Answer(ask.sum, "open", own=own_seed(self._secret, ask.sum), pairs=pairs)

    def _pair_seed(self, ask: Ask, other: str) -> bytes:
        try:
            return pair_seed(self._secret, ask.keys[other], ask.sum)
        except ProtocolError as err:
            raise ProtocolError(f"device {other}: {err}") from err

    def _remember(self, name: str, present: list[str]) -> None:
        """A sum opened for two sets of devices would tell their difference."""
        opened: dict[str, list[str]] = {}
        if self._file.exists():
            opened = msgspec.json.decode(self._file.read_bytes(), type=dict[str, list[str]])
        if opened.setdefault(name, present) != present:
            raise ProtocolError("this sum was opened for other devices before; begin it anew")
        self._file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(self._file, msgspec.json.encode(dict(list(opened.items())[-KEEP_OPENED:])))
