"""`fedwright device profile`: two passes over the probes and the fit."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from fedwright.device_runtime import facts
from fedwright.device_runtime.profiler.fit import fit
from fedwright.device_runtime.profiler.measure import OperatorTime, ProbeTime, Progress, time_probes
from fedwright.device_runtime.profiler.pack import Probe, load_probes
from fedwright.protocol.predictor import Profile

# Two passes that differ more than this say that the board was busy or hot.
AGREE = 0.15
# A board under load whose clock stands below this share of its highest is held back.
SLOW_RATIO = 0.7
PASSES = 2


@dataclass(frozen=True)
class Sensors:
    """How the board is asked how it does; replaced in tests."""

    health: Callable[[], facts.Health] = facts.health


def measure_profile(
    *,
    threads: int,
    provider: str = "cpu",
    probes: list[Probe] | None = None,
    progress: Progress | None = None,
    sensors: Sensors | None = None,
) -> Profile:
    """Measure this device; what makes the numbers doubtful is in `warnings`."""
    began_s = time.monotonic()
    health = (sensors or Sensors()).health
    before = health()
    base_bytes = _resident_bytes()
    found = load_probes() if probes is None else probes
    total = PASSES * len(found)
    passes = []
    for number in range(PASSES):

        def report(done: int, of: int, what: str, number: int = number) -> None:
            if progress is not None:
                progress(number * of + done, total, what)

        passes.append(time_probes(found, threads=threads, provider=provider, trace=number == 0, progress=report))
    if progress is not None:
        progress(total, total, "done")
    kinds, spread = fit(merged(*passes))
    repeat = disagreement(*passes)
    board = facts.board(threads=threads)
    return Profile(
        board=board.model,
        runtime=board.runtime,
        threads=threads,
        power_mode=before.power_mode or "",
        kinds=kinds,
        spread=spread,
        repeat=repeat,
        base_bytes=base_bytes,
        seconds=time.monotonic() - began_s,
        warnings=_warnings(repeat, before, health()),
    )


def merged(first: list[ProbeTime], *others: list[ProbeTime]) -> list[ProbeTime]:
    """The least of all passes; operators that only one of them timed are taken from that."""
    for other in others:
        first = [
            replace(a, step_s=min(a.step_s, b.step_s), operators=_lesser(a.operators, b.operators))
            for a, b in zip(first, other, strict=True)
        ]
    return first


def _lesser(first: list[OperatorTime], second: list[OperatorTime]) -> list[OperatorTime]:
    if len(first) != len(second):
        return first or second
    return [a if a.seconds <= b.seconds else b for a, b in zip(first, second, strict=True)]


def disagreement(first: list[ProbeTime], second: list[ProbeTime]) -> float:
    """How far two passes are from one another: the median over probes of the relative difference of a step."""
    return median(abs(a.step_s - b.step_s) / min(a.step_s, b.step_s) for a, b in zip(first, second, strict=True))


def _warnings(repeat: float, before: facts.Health, after: facts.Health) -> list[str]:
    found = []
    if repeat > AGREE:
        found.append(
            f"two passes differ by {repeat:.0%}, more than {AGREE:.0%}: the board was busy or changed its clock; "
            f"measure again when it is idle"
        )
    problems = sorted({*before.throttled, *after.throttled})
    if problems:
        found.append(
            f"the board holds itself back ({', '.join(problems)}); mend its power or cooling, then measure again"
        )
    clocks = after.clocks
    if clocks is not None and clocks.most_hz and clocks.now_hz < SLOW_RATIO * clocks.most_hz:
        found.append(
            f"the clock stands at {clocks.now_hz / 1e9:.1f} of {clocks.most_hz / 1e9:.1f} GHz after measuring"
            f"{f' (governor {clocks.governor})' if clocks.governor else ''}; cool the board or let it run faster"
        )
    if before.power_mode != after.power_mode:
        found.append("the power mode changed while measuring; measure again")
    return found


def _resident_bytes() -> int:
    """Memory of this process with the runtime loaded and nothing in it."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return facts.peak_rss_bytes()
    return pages * os.sysconf("SC_PAGE_SIZE")
