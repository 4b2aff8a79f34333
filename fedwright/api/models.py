"""Models as a program has them, a module, its class or a function, under a name that a config can hold."""

import copy
import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from fedwright.api import given
from fedwright.protocol.errors import ConfigError

TOLD = ("input_shape", "classes")

Make = Callable[..., nn.Module]


def model_name(model: Any) -> str:
    """The name from which a run makes this model; a string is one already."""
    if isinstance(model, str):
        return model
    if isinstance(model, nn.Module):
        return given.keep(model, _copies_of(model), label=type(model).__name__)
    if not callable(model):
        raise ConfigError(
            f"{model!r:.60} is no model; give a torch.nn.Module, its class, a function that makes one, "
            "or a name from `fedwright models`"
        )
    names = inspect.signature(model).parameters
    place = given.place_of(model) if all(each in names for each in TOLD) else None
    return place or given.keep(model, _maker(model), label=getattr(model, "__name__", "model"))


def _copies_of(model: nn.Module) -> Make:
    """A run trains copies; the program's own stays as it is."""

    def make(*, input_shape: tuple[int, ...], classes: int) -> nn.Module:
        del input_shape, classes
        return copy.deepcopy(model)

    return make


def _maker(model: Callable[..., nn.Module]) -> Make:
    """Tells a class or function of the shape of the data and the number of classes as far as it asks for them."""

    def make(*, input_shape: tuple[int, ...], classes: int) -> nn.Module:
        told = {"input_shape": input_shape, "classes": classes}
        parameters = inspect.signature(model).parameters.values()
        takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters)
        names = [each.name for each in parameters]
        arguments = {name: told[name] for name in TOLD if takes_all or name in names}
        try:
            inspect.signature(model).bind(**arguments)
        except TypeError as err:
            raise ConfigError(
                f"the model {getattr(model, '__name__', model)} cannot be made: {err}; it may take input_shape and "
                "classes, all else needs a default"
            ) from err
        return model(**arguments)

    return make
