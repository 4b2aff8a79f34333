"""What one task may take of the board, held by the kernel: memory that is free when it begins, and processor time."""

import resource
import time

from fedwright.device_runtime import facts

# Address space that is counted but hardly touched: stacks of threads, an arena that doubles.
UNTOUCHED_BYTES = 64 * 1024 * 1024
# However short its deadline, so much processor time a task may take for each core.
LEAST_CPU_S = 60.0
_MOST_S = 10**9


class TaskLimits:
    """Limits of this process, set when a task begins and lifted when it ends."""

    def __init__(self, agent: int) -> None:
        _, self._hard_bytes = resource.getrlimit(resource.RLIMIT_DATA)
        self._usual_bytes = self._hard_bytes
        if self._hard_bytes != resource.RLIM_INFINITY:
            # A limit on each process stands for the memory of a board, which both share.
            self._usual_bytes = max(0, self._hard_bytes - facts.resident_bytes(agent))
        self.end()

    def begin(self, deadline_s: float) -> None:
        """Allocations beyond what is free fail from now on; the kernel ends the process when time is up."""
        bytes_ = facts.data_bytes() + facts.free_bytes() + UNTOUCHED_BYTES
        if self._usual_bytes != resource.RLIM_INFINITY:
            bytes_ = min(bytes_, self._usual_bytes)
        resource.setrlimit(resource.RLIMIT_DATA, (bytes_, self._hard_bytes))
        _, hard_s = resource.getrlimit(resource.RLIMIT_CPU)
        until_s = int(min(time.process_time() + cpu_limit_s(deadline_s), _MOST_S)) + 1
        if hard_s != resource.RLIM_INFINITY:
            until_s = min(until_s, hard_s)
        resource.setrlimit(resource.RLIMIT_CPU, (until_s, hard_s))

    def end(self) -> None:
        """Only what held before holds."""
        resource.setrlimit(resource.RLIMIT_DATA, (self._usual_bytes, self._hard_bytes))
        _, hard_s = resource.getrlimit(resource.RLIMIT_CPU)
        resource.setrlimit(resource.RLIMIT_CPU, (hard_s, hard_s))


def cpu_limit_s(deadline_s: float) -> float:
    """Processor time that a task may take: more than all cores have until its deadline cannot be in time."""
    return facts.cores() * max(LEAST_CPU_S, deadline_s)
