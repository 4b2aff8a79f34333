"""From a table of operators to the time of one training step, by the same code on both sides.

A device measures its operators once (device_runtime/profiler) and gets one line of non-negative coefficients for each
kind: seconds = coefficients · FEATURES. Features grow with width and batch and coefficients are never negative, so a
prediction never falls when a model grows. The manifest carries the features of a graph, summed by kind.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedwright.protocol.artifact import Manifest
from fedwright.protocol.errors import BadArtifact, BadMessage

Shape = tuple[int, ...]

# calls: 1. flops: multiplications and additions of products. elements: read and written. inner: what a product copies
# on the way (patches of a convolution, weights of a matrix product). spill and flood: elements beyond what
# a small and a large cache hold. repeats: what is done again for every example (weights of a convolution, filters of a
# depthwise one) or piece by piece (a transposition).
FEATURES = ("calls", "flops", "elements", "inner", "spill", "flood", "repeats")
CACHE_ELEMENTS = (64 * 1024, 512 * 1024)
# The batch sizes at which a table is written; between them features are close to straight lines.
WORK_BATCHES = (1, 8, 32, 128)
# A matrix product works on this many columns at a time, used or not.
TILE = 16
# What training takes beyond a process that has the runtime loaded: a session, so many bytes for each byte of its graph,
# the tensors that stay, and those that live at the peak of a step with the gaps between them in the arena.
SESSION_BYTES = 12_000_000
GRAPH_RATIO = 20.0
ARENA_RATIO = 1.3
# Measured peaks reach 1.2 times the expected one.
HEADROOM = 1.3
# One EWMA step of `Refinement`.
REFINE_RATIO = 0.3

_CONVOLUTIONS = {"Conv", "FusedConv", "ConvTranspose"}
_PRODUCTS = {"MatMul", "FusedMatMul", "Gemm", "FusedGemm", "TransposeMatMul"}
_RECURRENT = {"LSTM", "GRU", "RNN"}
# What onnxruntime makes of an operator when it fuses it with a neighbour.
_SAME = {"FusedConv": "Conv", "FusedMatMul": "MatMul", "FusedGemm": "Gemm", "TransposeMatMul": "MatMul"}
# Only the shape changes; the runtime moves nothing.
_FREE = {"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Shape", "Size", "Constant"}

Work = Mapping[str, Sequence[float]]
"""Kind of operator -> its FEATURES at each of WORK_BATCHES, one after another."""


def features(op: str, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> tuple[str, tuple[float, ...]]:
    """The kind of one operator call and its FEATURES, from shapes alone."""
    moved = float(sum(math.prod(shape) for shape in (*inputs, *outputs)))
    if op in _FREE:
        return "shape", (1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    small, large = CACHE_ELEMENTS
    traffic = (moved, max(0.0, moved - small), max(0.0, moved - large))
    if op in _CONVOLUTIONS and len(inputs) > 1 and outputs:
        return _convolution(op, inputs, outputs[0], traffic)
    if op in _PRODUCTS and len(inputs) > 1 and outputs and inputs[0]:
        return _product(op, inputs, outputs[0], traffic)
    if op in _RECURRENT and len(inputs) > 2 and len(inputs[0]) == 3:
        steps, batch = inputs[0][:2]
        weights = float(math.prod(inputs[1]) + math.prod(inputs[2]))
        return op, (float(steps), 2.0 * steps * batch * weights, moved, steps * weights, *traffic[1:], 0.0)
    if op == "Scan":
        return _scan(inputs, outputs, traffic)
    return op + _variant(op, inputs, outputs), (1.0, 0.0, moved, 0.0, *traffic[1:], _pieces(op, inputs, outputs))


def _scan(
    inputs: Sequence[Shape], outputs: Sequence[Shape], traffic: tuple[float, float, float]
) -> tuple[str, tuple[float, ...]]:
    """A loop over time: its states are [units, batch], what it reads and writes [steps, gates and batch]."""
    read = [shape for shape in inputs if len(shape) == 3]
    series = [*read, *(shape for shape in outputs if len(shape) == 3)]
    units = max((shape[0] for shape in inputs if len(shape) == 2), default=1)
    steps = max((shape[0] for shape in series), default=1)
    gates = max((math.prod(shape[1:]) for shape in series), default=1)
    # Backwards it reads what the way forward kept.
    kind = "Scan" if len(read) < 2 else "Scan back"
    return kind, (float(steps), 2.0 * steps * gates * units, traffic[0], steps * units * 4.0 * units, *traffic[1:], 0.0)


def _pieces(op: str, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> float:
    """How many pieces a transposition moves: the dimensions at the end that stay where they are make one piece."""
    if op != "Transpose" or not inputs or not outputs:
        return 0.0
    together = 1
    for source, target in zip(reversed(inputs[0]), reversed(outputs[0]), strict=False):
        if source != target:
            break
        together *= source
    return math.prod(outputs[0]) / max(1, together)


def _convolution(
    op: str, inputs: Sequence[Shape], out: Shape, traffic: tuple[float, float, float]
) -> tuple[str, tuple[float, ...]]:
    image, weight = inputs[0], inputs[1]
    taps = math.prod(weight[1:])
    # A transposed one multiplies each entry it reads, a plain one makes each entry it writes.
    many = image if op == "ConvTranspose" else out
    places = math.ceil(math.prod(many[2:]) / TILE) * TILE
    made = float(many[0] * many[1] * places)
    repeats = float(many[0] * math.prod(weight))
    kind = _SAME.get(op, op)
    if kind == "Conv" and weight[1] == 1 and weight[0] > 1 and image[1] == weight[0]:
        kind, repeats = "Conv depthwise", float(many[0] * weight[0])
    elif (image[1] != weight[1]) if kind == "Conv" else (out[1] != weight[1]):
        kind += " grouped"
    elif math.prod(weight[2:]) == 1:
        kind += " 1x1"
    # One image after another stays in the cache, however many there are.
    return kind, (1.0, 2.0 * made * taps, traffic[0], made / max(1, many[1]) * taps, 0.0, 0.0, repeats)


def _product(
    op: str, inputs: Sequence[Shape], out: Shape, traffic: tuple[float, float, float]
) -> tuple[str, tuple[float, ...]]:
    left, right = inputs[0], inputs[1]
    columns = out[-1] if out else 1
    rows = math.prod(out) / max(1, columns)
    depth = math.sqrt(math.prod(left) * math.prod(right) / max(1.0, rows * columns)) if len(out) == 2 else left[-1]
    if op == "FusedMatMul" and len(out) > 2:
        depth = math.prod(left) / max(1.0, rows)
    padded = math.ceil(columns / TILE) * TILE
    kind = _SAME.get(op, op) + (" many" if len(out) > 2 and len(right) > 2 else "")
    calls = float(math.prod(out[:-2])) if kind.endswith("many") else 1.0
    return kind, (calls, 2.0 * rows * padded * depth, traffic[0], float(math.prod(right)), *traffic[1:], 0.0)


def _variant(op: str, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> str:
    """Operators of one name that run through different code: broadcasts, and what a reduction leaves."""
    if op.startswith("Reduce") and inputs and outputs:
        source, out = inputs[0], outputs[0]
        if math.prod(out) <= 1:
            return " all"
        kept_last = bool(out) and out[-1] == source[-1] and source[-1] > 1
        return " rows" if kept_last else " columns"
    if op == "Transpose" and inputs and outputs:
        kept = inputs[0][-1:] == outputs[0][-1:]
        return f" {len(inputs[0])}{' kept' if kept else ''}"
    if op == "Slice" and inputs and outputs and inputs[0] == outputs[0]:
        return " flip"
    wide = [shape for shape in inputs if math.prod(shape) > 1]
    if len(inputs) > 1 and len(set(wide)) > 1 and outputs and op in _BROADCASTS:
        return " broadcast"
    return ""


_BROADCASTS = {"Add", "Sub", "Mul", "Div", "Max", "Min", "Pow", "Where", "Equal", "Greater", "Less"}


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
    except (msgspec.MsgspecError, UnicodeDecodeError) as err:
        raise BadMessage(f"the profile cannot be read: {err}; measure again with `fedwright device profile`") from err
    numbers = [profile.step_s, profile.spread, profile.refined, *(v for row in profile.kinds.values() for v in row)]
    numbers += profile.link.values()
    if profile.format != 1 or any(len(row) != len(FEATURES) for row in profile.kinds.values()):
        raise BadMessage("the profile is of another release; measure again with `fedwright device profile`")
    if any(not math.isfinite(value) or value < 0 for value in numbers):
        raise BadMessage("the profile holds a number below zero; measure again with `fedwright device profile`")
    return profile


def work_at(work: Work, batch: int) -> dict[str, NDArray[np.float64]]:
    """The FEATURES of each kind at a batch size, on the line between the two nearest sizes of the table."""
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


def _dear(profile: Profile, kind: str) -> NDArray[np.float64]:
    """For a kind that was never measured: the dearest of its relatives, else more than nine kinds in ten cost."""
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
