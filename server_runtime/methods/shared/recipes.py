"""How a device trains in a round, where a method asks for nothing of its own."""

from typing import Literal

from msgspec import structs

from fedwright.protocol.messages import Recipe
from fedwright.server_runtime.blocks.budget import step_count
from fedwright.server_runtime.methods.base import Setting
from fedwright.server_runtime.seeds import derive_seed


def recipe_for(setting: Setting, round_number: int, device: str) -> Recipe:
    """The run's common recipe at this round's learning rate, with this device's own data order."""
    return Recipe(
        batch=setting.batch,
        learning_rate=setting.learning_rate * setting.schedule.ratio(round_number, setting.rounds),
        seed=derive_seed(setting.seed, "data order", round_number, device),
        epochs=setting.epochs,
        steps=setting.steps,
    )


def in_groups(recipe: Recipe, samples: int, of: int) -> Recipe:
    """The recipe in whole groups of so many steps: those that it asks for, and perhaps a few more."""
    groups = -(-step_count(recipe, samples) // of)
    return structs.replace(recipe, steps=groups * of)


def pooled_by(setting: Setting, *, by_samples: bool) -> Literal["samples", "devices"] | None:
    """How an edge may put updates together: a weighted mean of means is the mean; a median is not.

    Nor may it where each change is clipped and has one voice.
    """
    if setting.combine.kind != "mean" or setting.combine.central is not None:
        return None
    return "samples" if by_samples else "devices"
