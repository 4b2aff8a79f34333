"""How many threads to train a graph with: one where handing out the work takes longer than it saves.

The choice follows from the graph and from what the device measured of itself, never from a clock, so that a task that
is done again is done alike: the last bits of some operators depend on the number of threads.
"""

from collections.abc import Sequence

from fedwright.protocol.artifact import Manifest
from fedwright.protocol.operator_costs import FEATURES
from fedwright.protocol.predictor import Profile, predict, work_at

# The batch size to reckon with; tasks of one artifact may differ in theirs.
BATCH = 32
# Steps shorter than this are made of operators too short to be worth sharing.
SHORT_S = 0.02
# The same for a device that never measured itself.
FEW_FLOPS = 1e9


def pick_threads(manifest: Manifest, cores: int, profiles: Sequence[Profile] = ()) -> int:
    """One thread or all cores, whichever the profiles of this device predict to be faster.

    With a profile for only one of both, and without any, a step must be long enough for more threads to pay.
    """
    if cores == 1 or not manifest.work:
        return cores
    step_s = {p.threads: predict(p, manifest.work, batch=BATCH).step_s for p in profiles if p.threads in (1, cores)}
    if len(step_s) == 2:
        return min(step_s, key=lambda threads: (step_s[threads], threads))
    if 1 in step_s:
        return cores if step_s[1] >= SHORT_S else 1
    flops = sum(float(row[FEATURES.index("flops")]) for row in work_at(manifest.work, BATCH).values())
    return cores if flops >= FEW_FLOPS else 1
