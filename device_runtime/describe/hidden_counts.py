"""Counts that a device keeps to itself: it takes part in sums that hide them, and says one figure of its own.

Sums are those of `device_runtime/secure`, with keys that members' certificates sign. Beyond them a device watches what
could be made of several answers: its counts are opened over one set of devices (two sums tell their difference), its
score is told against one pool and in a few steps (a pool of the server's own choosing tells of the counts), and both
are on its disk before they are told, for good. Its owner may allow more of them (`sums_of_counts` in policy.toml).
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from fedwright.device_runtime.secure.credentials import SumCredentials
from fedwright.device_runtime.secure.kept import Change
from fedwright.device_runtime.secure.sums import Offer, SecureSums
from fedwright.protocol.class_names import places_in
from fedwright.protocol.divergence import distribution, divergence
from fedwright.protocol.errors import ConfigError, DeviceError, FedwrightError, ProtocolError
from fedwright.protocol.messages import CHUNK_BYTES, CountTerms, DataSummary, Effort, SumAnswer, SumAsk, SumTerms, Task
from fedwright.protocol.secure.masks import MOST_SUM
from fedwright.protocol.secure.roster import MOST_MEMBERS
from fedwright.protocol.support.files import write_private
from fedwright.protocol.support.unreadable import UNREADABLE

# A score, from 0 to log 2, is told in so many steps: it says six bits, whatever it is compared with.
SCORE_STEPS = 64
# So that the sum of the most members there may be is exact.
MOST_COUNT = MOST_SUM // MOST_MEMBERS

Counts = NDArray[np.int64]


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


@dataclass(frozen=True)
class OwnCounts:
    """What a device hides: samples by class, called `names` where classes have names; words of data that may be text.

    sums: over how many sets of devices they may be opened, and against how many pools compared. least: devices in a
    sum, as the owner demands.
    """

    classes: tuple[int, ...]
    names: tuple[str, ...] = ()
    words: tuple[int, ...] = ()
    sums: int = 1
    least: int = 0


def counts_of(summary: DataSummary, *, sums: int = 1, least: int = 0) -> OwnCounts:
    """What a device that could tell this much hides."""
    if not summary.class_counts:
        raise ConfigError("this device has no counts that it could hide; give it labelled data")
    names, words = tuple(summary.class_names or ()), tuple(summary.score_counts or ())
    return OwnCounts(tuple(summary.class_counts), names, words, sums, least)


class Told(msgspec.Struct, frozen=True):
    """What was made of the counts, by hashes: over whom they were opened, and what they were compared with.

    masked: among whom they went under masks; whether and over whom that is opened, its others decide.
    """

    sums: list[bytes] = []
    pools: list[bytes] = []
    masked: list[bytes] = []


class HiddenCounts:
    """A device's part in sums of counts; answers depend on the question alone, so that one may be asked again."""

    def __init__(
        self, device: str, counts: OwnCounts, *, folder: Path, credentials: SumCredentials | None = None
    ) -> None:
        self._counts = counts
        self._folder = folder / "counts"
        self._file = self._folder / "told"
        self._sums = SecureSums(device, self._folder, credentials, allow=self._allow)

    def check(self, task: Task) -> None:
        """DeviceError for a task whose result would tell the counts that are hidden here, or has other classes."""
        self._check_names(task.class_names)
        # Class means and their counts tell nothing more in a sum than the sum of counts does.
        what = "asks for class means and their counts" if task.returns.class_means and task.sum is None else ""
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
        if not set(self._counts.names) <= set(run_names):
            raise DeviceError("this device has classes that the run does not list; list all in [model] classes")

    def answer(self, ask: SumAsk, offer: Offer) -> SumAnswer:
        """What the server asks for; a problem instead when it asks for more than is safe."""
        try:
            if ask.counts is None:
                raise ProtocolError("it is not said which counts are asked for; update the server")
            if ask.stage == "score":
                return SumAnswer(ask.sum, "score", score=self._score(ask, ask.counts))
            if ask.stage == "keys" and not self._sums.has(ask.task):
                self._keep(ask.task, ask.counts)
            return self._sums.answer(ask, offer)
        except (FedwrightError, OSError) as err:
            return SumAnswer(ask.sum, ask.stage, problem=str(err)[:500])

    def offer(self) -> dict[str, Any]:
        """What a report says of this device's part in sums: that it takes one, and for how many words."""
        return {"sums_counts": True, "sum_words": len(self._counts.words)}

    def _keep(self, name: str, wanted: CountTerms) -> None:
        """Put the counts where a task's change would lie."""
        row = self._in_order(wanted)
        if row.max(initial=0) > MOST_COUNT:
            raise DeviceError(f"this device has more than {MOST_COUNT} of one kind, for which a sum has no room")
        self._folder.mkdir(parents=True, exist_ok=True)
        file = self._folder / "row"
        row.astype("<f4").tofile(file)
        terms = SumTerms("counts", max(wanted.least, self._counts.least), 1.0, Effort(1), by="devices")
        work = hashlib.sha256(msgspec.msgpack.encode(("fedwright sum of counts", wanted))).digest()
        self._sums.keep(Change(name, terms, work, 1, CHUNK_BYTES, whole=True), file)

    def _in_order(self, wanted: CountTerms) -> Counts:
        """The own counts at the places that their classes have in the sum; words are numbered alike everywhere."""
        own = self._counts
        if wanted.words and own.words:
            return _padded(np.asarray(own.words, np.int64), wanted.length)
        counts = np.asarray(own.classes, np.int64)
        if not own.names:
            return _padded(counts, wanted.length)
        self._check_names(wanted.class_names)
        placed = np.zeros(len(wanted.class_names), np.int64)
        placed[places_in(wanted.class_names, own.names)] = counts
        return _padded(placed, wanted.length)

    def _score(self, ask: SumAsk, wanted: CountTerms) -> float:
        """h_i = JSD(p_i || p_g), in steps."""
        counts = self._in_order(wanted)
        if len(ask.pooled) != wanted.length:
            raise ProtocolError(f"there are {len(ask.pooled)} pooled counts but {wanted.length} were announced")
        pooled = distribution(np.asarray(ask.pooled, np.int64), smoothing=ask.smoothing)
        told = self._told()
        question = _digest(ask.pooled, ask.smoothing, wanted)
        if question not in told.pools:
            if len(told.pools) >= self._counts.sums:
                raise ProtocolError(f"this device has told how unlike another pool it is; {self._advice()}")
            self._remember(structs.replace(told, pools=[*told.pools, question]))
        return in_steps(divergence(distribution(counts, smoothing=ask.smoothing), pooled))

    def _allow(self, devices: list[str], *, masked: bool) -> None:
        """Raise ProtocolError for another set of devices than the counts were masked among, or opened over, before."""
        told, name, new = self._told(), "masked" if masked else "sums", _digest(devices)
        known = getattr(told, name)
        if new in known:
            return
        if len(known) >= self._counts.sums:
            raise ProtocolError(f"the counts of this device were in a sum over other devices; {self._advice()}")
        self._remember(structs.replace(told, **{name: [*known, new]}))

    def _advice(self) -> str:
        return f"its owner lets them be in {self._counts.sums} (sums_of_counts in policy.toml)"

    def _told(self) -> Told:
        try:
            return msgspec.msgpack.decode(self._file.read_bytes(), type=Told)
        except FileNotFoundError:
            return Told()
        except UNREADABLE as err:
            # What was told is told, also if nobody can read here what it was.
            raise DeviceError(
                f"{self._file} cannot be read, so that no count is told; remove it if all may be"
            ) from err

    def _remember(self, told: Told) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        write_private(self._file, msgspec.msgpack.encode(told))


def in_steps(score: float) -> float:
    """A score from 0 to log 2 as it is told."""
    return round(SCORE_STEPS * score / math.log(2)) * math.log(2) / SCORE_STEPS


def _padded(counts: Counts, length: int) -> Counts:
    if length < len(counts):
        raise ProtocolError(f"the sum has {length} counts but this device has {len(counts)}")
    return np.pad(counts, (0, length - len(counts)))


def _digest(*parts: object) -> bytes:
    return hashlib.sha256(msgspec.msgpack.encode(parts)).digest()
