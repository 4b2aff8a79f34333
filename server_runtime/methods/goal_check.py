"""Which methods work for a task other than single classes."""

from fedwright.protocol.errors import ConfigError
from fedwright.protocol.goals import CLASSIFY

# They average, slice, compress or generate weights; all others look at classes, logits or class means.
ANY_GOAL = (
    *("fedavg", "fedprox", "fedavgm", "fedadam", "fedyogi", "scaffold", "fedbn", "head-private", "encoder-private"),
    *("standalone", "fedrolex", "feddropout", "fiarse", "hermes", "lotteryfl", "per-fedavg", "pfedme", "pfedhn"),
)


def check_goal(method: str, goal: str, *, known: bool) -> None:
    """Raise ConfigError for a method that is about classes when the run is not; known: it is one of ours."""
    if goal != CLASSIFY and known and method not in ANY_GOAL:
        raise ConfigError(
            f"method {method} is about single classes, but model.task is {goal!r}; choose one of "
            f"{', '.join(sorted(ANY_GOAL))}"
        )
