"""Which methods work for a task other than single classes."""

from collections.abc import Callable
from typing import Any

from fedwright.protocol.errors import ConfigError
from fedwright.protocol.goals import CLASSIFY

# They average, slice, compress or generate weights; all others look at classes, logits or class means.
ANY_GOAL = (
    *("fedavg", "fedprox", "fedavgm", "fedadam", "fedyogi", "scaffold", "fedbn", "head-private", "encoder-private"),
    *("standalone", "fedrolex", "feddropout", "fiarse", "hermes", "lotteryfl", "per-fedavg", "pfedme", "pfedhn"),
    *("heterofl", "scalefl", "tailorfl", "flexifed", "hasa", "framp", "fedconv", "slice-tuned", "adapters-private"),
)

# Tasks whose labels say nothing of classes; of several labels each is a class that a sample has or not.
NUMBERS = ("regress", "forecast")


def check_goal(method: str, params: Any, goal: str, *, known: bool, loss: bool = False) -> None:
    """Raise ConfigError for a method that is about classes when the run is not.

    params: of the method. known: it is one of ours. loss: the run has a loss of its own.
    """
    if (goal == CLASSIFY and not loss) or not known:
        return
    task = "of a loss of your own" if loss else repr(goal)
    if method not in ANY_GOAL:
        raise ConfigError(
            f"method {method} is about single classes, but model.task is {task}; choose one of "
            f"{', '.join(sorted(ANY_GOAL))}"
        )
    problem = _SETTINGS[method](params, goal) if method in _SETTINGS else ""
    if problem:
        raise ConfigError(f"method {method} is set to {problem}, but model.task is {task}; choose another")


def check_public(method: str, goal: str, *, given: bool) -> None:
    """Raise ConfigError for examples on the server that a method would learn classes from."""
    if given and goal != CLASSIFY and method in ("fedconv", "slice-tuned"):
        raise ConfigError(
            f"method {method} tunes on the server by classes, but model.task is {goal!r}; leave the examples of "
            "[public] out, so that only devices train"
        )


def _counts(params: Any, goal: str) -> str:
    """Scores of counts say nothing about numbers, of which every device has as many as samples."""
    reads = params.rule not in ("uniform", "size") and params.score == "counts"
    return "score = 'counts', of classes" if reads and goal in NUMBERS else ""


def _indicator(params: Any, goal: str) -> str:
    """Which classes a device holds says nothing about numbers to predict."""
    return "describe = 'classes'" if params.describe == "classes" and goal in NUMBERS else ""


_SETTINGS: dict[str, Callable[[Any, str], str]] = {"hasa": _counts, "framp": _indicator}
