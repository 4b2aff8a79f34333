"""Operator times -> non-negative coefficients, and whole steps -> what a step costs besides its operators."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from fedwright.device_runtime.profiler.measure import OperatorTime, ProbeTime
from fedwright.protocol.operator_costs import FEATURES

# Errors below this do not add up to much in a step; above it they count relative to the operator's time.
SMALL_S = 2e-5
LEAST_S = 2e-7
# The runtime traces what is inside a loop too, which takes longer than the loop itself.
UNTRACED = ("Scan", "Scan back")
# Few probes have loops: their calls, products and elements are all that can be told apart.
LOOP_FEATURES = (0, 1, 2)

# What a cache does not hold counts when it is this share of what is touched, in so many samples.
FILLED = 0.2
SEEN = 4

Matrix = NDArray[np.float64]


def fit_kinds(times: Iterable[ProbeTime]) -> dict[str, list[float]]:
    """Coefficients of every kind of operator that was seen."""
    samples: dict[str, list[OperatorTime]] = {}
    for time in times:
        for operator in time.operators:
            samples.setdefault(operator.kind, []).append(operator)
    return {kind: fit_kind(found) for kind, found in sorted(samples.items())}


def fit_kind(samples: list[OperatorTime]) -> list[float]:
    """Non-negative coefficients with the least relative error."""
    rows = np.array([sample.amounts for sample in samples], float)
    rows[:, _hardly_seen(rows)] = 0.0
    seconds = np.array([sample.seconds for sample in samples])
    weights = 1.0 / (seconds + SMALL_S)
    return [float(value) for value in non_negative(rows * weights[:, None], seconds * weights)]


def _hardly_seen(rows: Matrix) -> list[int]:
    """Columns of caches that hardly any sample fills: a few elements beyond one would be blamed for any error."""
    body = np.maximum(rows[:, FEATURES.index("elements")], rows[:, FEATURES.index("inner")])
    beyond = [FEATURES.index("spill"), FEATURES.index("flood")]
    return [column for column in beyond if np.sum(rows[:, column] > FILLED * body) < SEEN]


def non_negative(rows: Matrix, wanted: Matrix) -> Matrix:
    """argmin |rows x - wanted| over x >= 0, exactly, by trying every set of non-zero entries (few columns only)."""
    columns = rows.shape[1]
    scale = np.maximum(np.linalg.norm(rows, axis=0), 1e-30)
    used = [index for index in range(columns) if scale[index] > 1e-20]
    best, best_error = np.zeros(columns), float(np.linalg.norm(wanted))
    for count in range(1, min(len(used), len(rows)) + 1):
        for chosen in combinations(used, count):
            index = list(chosen)
            found, *_ = np.linalg.lstsq(rows[:, index] / scale[index], wanted, rcond=1e-10)
            if (found < 0).any():
                continue
            error = float(np.linalg.norm(rows[:, index] / scale[index] @ found - wanted))
            if error < best_error * (1 - 1e-9):
                best, best_error = np.zeros(columns), error
                best[index] = found / scale[index]
    return best


def without_tracing(times: list[ProbeTime]) -> list[ProbeTime]:
    """The same times less what the trace itself costs per operator, found by comparing traced and plain steps."""
    plain = [time for time in times if not _has_loop(time)]
    steps = np.array([time.step_s for time in plain])
    best, cost_s = float("inf"), 0.0
    for guess_s in np.arange(0.0, 6e-6, 0.25e-6):
        sums = np.array([sum(max(LEAST_S, o.seconds - guess_s) for o in time.operators) for time in plain])
        logs = np.log(sums / steps)
        error = float(np.mean(np.abs(logs - np.median(logs))))
        if error < best:
            best, cost_s = error, float(guess_s)
    return [
        replace(time, operators=[replace(o, seconds=max(LEAST_S, o.seconds - cost_s)) for o in time.operators])
        for time in times
    ]


def _has_loop(time: ProbeTime) -> bool:
    return any(operator.kind in UNTRACED for operator in time.operators)


def fit_untraced(times: list[ProbeTime], kinds: dict[str, list[float]]) -> dict[str, list[float]]:
    """Loops, whose trace costs more than they do themselves: what plain steps take beyond their other operators."""
    rows, wanted = [], []
    for time in times:
        loops = [operator for operator in time.operators if operator.kind in UNTRACED]
        if loops:
            nothing = dict.fromkeys(UNTRACED, [0.0] * len(FEATURES))
            rows.append(np.concatenate([_summed(loops, kind)[list(LOOP_FEATURES)] for kind in UNTRACED]))
            wanted.append(max(LEAST_S, time.step_s - operators_s(time, {**kinds, **nothing})))
    if not rows:
        return {}
    weights = 1.0 / np.array(wanted)
    found = non_negative(np.array(rows) * weights[:, None], np.ones(len(rows)))
    fitted = {kind: [0.0] * len(FEATURES) for kind in UNTRACED}
    for index, value in enumerate(found):
        kind, place = divmod(index, len(LOOP_FEATURES))
        fitted[UNTRACED[kind]][LOOP_FEATURES[place]] = float(value)
    return fitted


def _summed(operators: list[OperatorTime], kind: str) -> Matrix:
    amounts = [operator.amounts for operator in operators if operator.kind == kind]
    return np.sum(amounts, axis=0) if amounts else np.zeros(len(FEATURES))


def fit_ratios(times: list[ProbeTime], kinds: dict[str, list[float]]) -> dict[str, list[float]]:
    """Kinds corrected so that whole plain steps come out right: one ratio for calls, one for all that grows."""
    rows = []
    for time in times:
        calls_s = sum(kinds[operator.kind][0] * operator.amounts[0] for operator in time.operators)
        rows.append([calls_s, operators_s(time, kinds) - calls_s])
    weights = 1.0 / np.array([time.step_s for time in times])
    calls, rest = non_negative(np.array(rows) * weights[:, None], np.ones(len(times)))
    ratios = [calls if name == "calls" else rest for name in FEATURES]
    return {kind: [float(r * v) for r, v in zip(ratios, row, strict=True)] for kind, row in kinds.items()}


def fit(times: list[ProbeTime]) -> tuple[dict[str, list[float]], float]:
    """Coefficients of every kind, and the spread of whole steps around their prediction (nine of ten lie within)."""
    clean = without_tracing(times)
    kinds = fit_kinds(clean)
    kinds = fit_ratios([time for time in clean if not _has_loop(time)], kinds)
    kinds |= fit_untraced(clean, kinds)
    logs = np.log([time.step_s / operators_s(time, kinds) for time in clean])
    return kinds, float(np.exp(np.quantile(np.abs(logs), 0.9)) - 1)


def operators_s(time: ProbeTime, kinds: dict[str, list[float]]) -> float:
    """What the coefficients say of a probe's operators together."""
    return float(sum(np.dot(kinds[operator.kind], operator.amounts) for operator in time.operators))
