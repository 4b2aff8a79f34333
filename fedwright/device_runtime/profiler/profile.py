"""`fedwright device profile`: two passes over the probes, the fit, and the file that keeps it."""

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from fedwright.device_runtime import facts
from fedwright.device_runtime.profiler.fit import fit
from fedwright.device_runtime.profiler.measure import ProbeTime, Progress, time_probes
from fedwright.device_runtime.profiler.pack import Probe, load_probes
from fedwright.protocol.errors import BadMessage, ConfigError
from fedwright.protocol.predictor import Profile, profile_from_json

# Two passes that differ more than this say that the board was busy or hot.
AGREE = 0.15
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


def merged(first: list[ProbeTime], second: list[ProbeTime]) -> list[ProbeTime]:
    """The operators of the first pass with the lesser step of both."""
    return [replace(a, step_s=min(a.step_s, b.step_s)) for a, b in zip(first, second, strict=True)]


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


def save_profile(path: Path, profile: Profile) -> None:
    """Put a profile into a file beside those for other threads, power modes and runtimes."""
    kept = _read(path) if path.exists() else {}
    kept[profile.key] = json.loads(profile.to_json())
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.new")
    draft.write_text(json.dumps({"format": 1, "profiles": kept}, indent=1) + "\n", encoding="utf-8")
    os.replace(draft, path)


def find_profile(path: Path, *, threads: int) -> Profile | None:
    """The profile of this board, runtime, power mode and number of threads; None when it was not measured."""
    if not path.exists():
        return None
    board, health = facts.board(threads=threads), facts.health()
    wanted = Profile(board.model, board.runtime, threads, health.power_mode or "").key
    entry = _read(path).get(wanted)
    return None if entry is None else profile_from_json(json.dumps(entry).encode())


def _read(path: Path) -> dict[str, Any]:
    try:
        data = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, OSError) as err:
        raise ConfigError(f"{path} is not a profile file ({err}); remove it and measure again") from err
    profiles = data.get("profiles")
    if data.get("format") != 1 or not isinstance(profiles, dict):
        raise BadMessage(f"{path} is a profile file of another release; remove it and measure again")
    return profiles
