"""What a model is trained for: how its labels look and how it is judged. A run has one goal, `[model] task` by name."""

from dataclasses import dataclass

from fedwright.protocol.errors import ConfigError

CLASSIFY, MULTILABEL, REGRESS = "classify", "multilabel", "regress"


@dataclass(frozen=True)
class Goal:
    """The labels of one kind of model.

    numbers: they are numbers [samples, outputs] and no classes. everywhere: a class at every place of a sample.
    first: the classes stand on the first axis behind the samples, as torch has them for images.
    measures: what is told of the held-out samples beside the loss.
    """

    name: str
    numbers: bool = False
    everywhere: bool = False
    first: bool = False
    measures: tuple[str, ...] = ()


GOALS = {
    goal.name: goal
    for goal in (
        Goal(CLASSIFY),
        Goal(MULTILABEL, numbers=True, measures=("accuracy", "f1", "auc")),
        Goal(REGRESS, numbers=True, measures=("mae", "rmse", "r2")),
        Goal("forecast", numbers=True, measures=("mae", "rmse", "r2")),
        Goal("segment", everywhere=True, first=True, measures=("accuracy", "iou")),
        Goal("language", everywhere=True, measures=("accuracy", "perplexity")),
    )
}
LESS_IS_BETTER = frozenset({"mae", "rmse", "perplexity"})
MEASURES = frozenset(name for goal in GOALS.values() for name in goal.measures)


def find_goal(name: str) -> Goal:
    """The goal of that name, or ConfigError."""
    if name not in GOALS:
        raise ConfigError(
            f"task {name!r} is not known; choose one of {', '.join(GOALS)}, or python:module:function, a loss of yours"
        )
    return GOALS[name]
