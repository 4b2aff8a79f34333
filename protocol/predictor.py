"""From a table of operators to the time of one training step, by the same code on both sides.

A device measures its operators once (device_runtime/profiler) and gets one line of non-negative coefficients for each
kind: seconds = coefficients · FEATURES. Features grow with width and batch and coefficients are never negative, so a
prediction never falls when a model grows. The manifest carries the features of a graph, summed by kind.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from fedwright.protocol.artifact import Manifest
from fedwright.protocol.errors import BadArtifact, BadMessage
from fedwright.protocol.operator_costs import FEATURES
from fedwright.protocol.support.unreadable import UNREADABLE

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# The batch sizes at which a table is written; between them features are close to straight lines.
WORK_BATCHES = (1, 8, 32, 128)
# What training takes beyond a process that has the runtime loaded: a session, so many bytes for each byte of its graph,
# the tensors that stay, and those that live at the peak of a step with the gaps between them in the arena.
SESSION_BYTES = 12_000_000
GRAPH_RATIO = 20.0
ARENA_RATIO = 1.3
# Measured peaks reach 1.2 times the expected one.
HEADROOM = 1.3
# One EWMA step of `Refinement`.
REFINE_RATIO = 0.3

Work = Mapping[str, Sequence[float]]
"""Kind of operator -> its FEATURES at each of WORK_BATCHES, one after another."""


@dataclass(frozen=True)
class Prediction:
    """Seconds of one step with the range it lies in about nine times in ten; `unknown` kinds were estimated high."""

    step_s: float
    low_s: float
    high_s: float
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True)
class Profile:
    """What a device measured of itself, as plain JSON.

    board, runtime, threads, power_mode: what it holds for, and nothing else. kinds: seconds per FEATURE of each kind
    of operator. step_s: what a step costs besides its operators. spread: how far whole graphs were from their
    prediction, as a ratio (0.1 = ten percent). repeat: how far two passes were from one another. refined: measured
    over predicted time of real tasks so far.
    """

    board: str
    runtime: str
    threads: int
    power_mode: str = ""
    kinds: dict[str, list[float]] = field(default_factory=dict)
    step_s: float = 0.0
    spread: float = 0.3
    repeat: float = 0.0
    base_bytes: int = 0
    seconds: float = 0.0
    warnings: list[str] = field(default_factory=list)
    link: dict[str, float] = field(default_factory=dict)
    refined: float = 1.0
    format: int = 1

    @property
    def key(self) -> str:
        """What the profile holds for, as one line."""
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        return " | ".join([self.board, self.runtime, threads, self.power_mode or "any power mode"])

    def to_json(self) -> bytes:
        """As plain JSON."""
        return msgspec.json.encode(self)


def profile_from_json(data: bytes) -> Profile:
    """A profile that was measured elsewhere; BadMessage when it is none, or one that no device could have measured."""
    try:
        profile = msgspec.json.decode(data, type=Profile)
    except UNREADABLE as err:
        raise BadMessage(f"the profile cannot be read: {err}; measure again with `fedwright device profile`") from err
    numbers = [profile.step_s, profile.spread, profile.refined, *(v for row in profile.kinds.values() for v in row)]
    numbers += profile.link.values()
    if profile.format != 1 or any(len(row) != len(FEATURES) for row in profile.kinds.values()):
        raise BadMessage("the profile is of another release; measure again with `fedwright device profile`")
    if any(not math.isfinite(value) or value < 0 for value in numbers):
        raise BadMessage("the profile holds a number below zero; measure again with `fedwright device profile`")
    return profile


def work_at(work: Work, batch: int) -> "dict[str, NDArray[np.float64]]":
    """The FEATURES of each kind at a batch size, on the line between the two nearest sizes of the table."""
    import numpy as np

    grid = np.array(WORK_BATCHES, float)
    upper = int(np.clip(np.searchsorted(grid, batch), 1, len(grid) - 1))
    share = (batch - grid[upper - 1]) / (grid[upper] - grid[upper - 1])
    found = {}
    for kind, values in work.items():
        if len(values) != len(grid) * len(FEATURES):
            raise BadArtifact(f"the manifest counts {kind!r} in {len(values)} numbers; build it with this release")
        rows = np.asarray(values, float).reshape(len(grid), len(FEATURES))
        found[kind] = np.maximum(0.0, rows[upper - 1] + share * (rows[upper] - rows[upper - 1]))
    return found


def predict(profile: Profile, work: Work, *, batch: int) -> Prediction:
    """Seconds of one training step of a graph with this table."""
    import numpy as np

    total, guessed = profile.step_s, 0.0
    unknown = []
    for kind, amounts in work_at(work, batch).items():
        coefficients = profile.kinds.get(kind)
        if coefficients is None:
            seconds = float(np.dot(_dear(profile, kind), amounts))
            unknown.append(kind)
            guessed += seconds
        else:
            seconds = float(np.dot(coefficients, amounts))
        total += seconds
    step_s = total * profile.refined
    margin = 1.0 + profile.spread
    return Prediction(step_s, (total - guessed) * profile.refined / margin, step_s * margin, tuple(sorted(unknown)))


def predict_step(profile: Profile, manifest: Manifest, *, batch: int, part: int | None = None) -> Prediction:
    """Seconds of one step on a batch of so many samples, done in parts of at most `part`."""
    if not manifest.sums:
        return predict(profile, manifest.work, batch=batch)
    count = 1 if part is None else -(-batch // part)
    runs = [(predict(profile, manifest.work, batch=-(-batch // count)), count)]
    runs.append((predict(profile, {k: row * len(WORK_BATCHES) for k, row in manifest.update_work.items()}, batch=1), 1))
    low, mean, high = (sum(times * getattr(run, name) for run, times in runs) for name in ("low_s", "step_s", "high_s"))
    return Prediction(mean, low, high, tuple(sorted({kind for run, _ in runs for kind in run.unknown})))


def _dear(profile: Profile, kind: str) -> "NDArray[np.float64]":
    """For a kind that was never measured: the dearest of its relatives, else more than nine kinds in ten cost."""
    import numpy as np

    if not profile.kinds:
        return np.zeros(len(FEATURES))
    name = kind.partition(" ")[0]
    family = [row for other, row in profile.kinds.items() if other.partition(" ")[0] == name]
    if family:
        return np.asarray(np.max(np.array(family, float), axis=0))
    rows = np.array(list(profile.kinds.values()), float)
    return np.array([np.quantile(column[column > 0], 0.9) if (column > 0).any() else 0.0 for column in rows.T])


def expected_bytes(manifest: Manifest, batch: int) -> int:
    """The most memory that training is likely to take beyond what the process has."""
    graph = manifest.files["train.onnx"].size_bytes if "train.onnx" in manifest.files else 0
    return int(SESSION_BYTES + GRAPH_RATIO * graph + manifest.fixed_bytes + ARENA_RATIO * batch * manifest.sample_bytes)


def need_bytes(manifest: Manifest, batch: int) -> int:
    """Memory to have before training at this batch size begins: what is expected, and room for what is not."""
    return int(HEADROOM * expected_bytes(manifest, batch))


def step_bytes(manifest: Manifest, batch: int) -> int:
    """The part of `need_bytes` that a trainer which is there already asks for anew at every step."""
    return int(HEADROOM * ARENA_RATIO * batch * manifest.sample_bytes)


@dataclass
class Refinement:
    """Measured over predicted step time of one device, as a moving mean of its logarithm."""

    ratio: float = 1.0
    seen: int = 0

    def note(self, measured_s: float, predicted_s: float) -> float:
        """Take one task's step time; `predicted_s` is that of the profile alone. Returns the new ratio."""
        if measured_s > 0 and predicted_s > 0:
            step = REFINE_RATIO if self.seen else 1.0
            now = math.log(measured_s / predicted_s)
            self.ratio = math.exp((1 - step) * math.log(self.ratio) + step * now)
            self.seen += 1
        return self.ratio
