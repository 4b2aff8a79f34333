"""What work costs, in ways that a busy machine does not change: counted calls, and CPU time beside other work's."""

import sys
import time
from collections.abc import Callable
from types import FrameType

Work = Callable[[], object]


def least_cpu_s(*works: Work, repeats: int = 5) -> list[float]:
    """Least CPU seconds of each; they take turns, so that a busy moment meets all of them."""
    found: list[list[float]] = [[] for _ in works]
    for _ in range(repeats):
        for work, times in zip(works, found, strict=True):
            started_s = time.process_time()
            work()
            times.append(time.process_time() - started_s)
    return [min(times) for times in found]


def count_calls(work: Work) -> int:
    """How many functions Python calls, its own and native ones."""
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return calls
