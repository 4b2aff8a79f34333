"""A loss of the user's own: a torch function of outputs and targets, traced once and put behind the model.

It gets what the model returns and the labels as they are (for `segment` [samples, classes, height, width] and
[samples, height, width]), and returns one number.
"""

import inspect
from collections.abc import Callable

import numpy as np
import onnxruntime as ort
import torch
from torch import nn

from fedwright.protocol.errors import BuildError, ConfigError, UnsupportedOperator
from fedwright.protocol.support import plugins
from fedwright.server_runtime.artifacts.autodiff.graph import Graph, Value
from fedwright.server_runtime.artifacts.export import export_function
from fedwright.server_runtime.artifacts.loss_forms import KNOWN

Function = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

# A traced loss must say what torch says for these numbers of samples too, or it has fixed something of the example.
_TRIED = (1, 3)
_CLOSE = 1e-4


class _Loss(nn.Module):
    """The function as a module without weights: what it holds are constants."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        # In a list, so that the weights of a loss that is a module are no weights of the model.
        self._held = [function]

    def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """One number."""
        return self._held[0](outputs, targets)


def load_loss(name: str) -> Function:
    """The function that `python:module:function` names; a class is called once without arguments."""
    plugin = plugins.parse(plugins.LOSSES, name)
    found = plugin.load()
    if inspect.isclass(found):
        try:
            found = found()
        except TypeError as err:
            raise plugin.problem(f"it is a class that needs arguments ({err}); name a function or an object") from err
    if not callable(found):
        raise plugin.problem(f"it is a {type(found).__name__}; it must be a function of outputs and targets")
    function: Function = found
    return function


def append_own_loss(graph: Graph, name: str, outputs: str, labels: str) -> str:
    """Append the traced function; the name of the number that it returns."""
    module = _Loss(load_loss(name))
    inputs = (
        Value("outputs", graph.shape(outputs), np.dtype(np.float32), "batch"),
        Value("targets", graph.shape(labels), graph.dtype(labels), "batch"),
    )
    _check_answer(module, inputs, name)
    _check_heeds(module, inputs, name)
    try:
        traced = export_function(module, inputs)
    except BuildError as err:
        known = f"; of torch's own losses it may use {', '.join(KNOWN)}" if isinstance(err, UnsupportedOperator) else ""
        raise BuildError(f"loss {name} cannot be put into a training graph: {err}{known}") from err
    _check_alike(module, traced, inputs, name)
    made = graph.merge(traced, "loss:", {"outputs": outputs, "targets": labels})
    return made[traced.outputs[0].name]


def _examples(inputs: tuple[Value, ...], samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs and targets at random; targets that are classes are zeros and ones."""
    rng = np.random.default_rng(samples)
    shapes = [[samples, *(2 if size == -1 else size for size in value.shape[1:])] for value in inputs]
    outputs = rng.standard_normal(shapes[0]).astype(np.float32)
    drawn = rng.integers(0, 2, shapes[1]) if inputs[1].dtype.kind == "i" else rng.random(shapes[1])
    return torch.from_numpy(outputs), torch.from_numpy(drawn.astype(inputs[1].dtype))


def _answer(module: nn.Module, inputs: tuple[Value, ...], samples: int, name: str) -> torch.Tensor:
    try:
        found = module(*_examples(inputs, samples))
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as err:
        shapes = " and ".join(str([size if size > 0 else "samples" for size in value.shape]) for value in inputs)
        raise ConfigError(
            f"loss {name} fails on outputs and targets of shapes {shapes}: {type(err).__name__}: "
            f"{str(err).splitlines()[0] if str(err) else ''}; mend it, or the model's number of outputs"
        ) from err
    if not isinstance(found, torch.Tensor):
        raise ConfigError(f"loss {name} returns a {type(found).__name__}; it must return a tensor of one number")
    return found


def _check_answer(module: nn.Module, inputs: tuple[Value, ...], name: str) -> None:
    found = _answer(module, inputs, 2, name)
    if found.shape != () or not found.is_floating_point():
        raise ConfigError(
            f"loss {name} returns {str(found.dtype).removeprefix('torch.')} of shape {list(found.shape)}; it must "
            "return one number, such as the mean over the samples"
        )


def _check_heeds(module: nn.Module, inputs: tuple[Value, ...], name: str) -> None:
    """Raise ConfigError for a loss without a gradient."""
    outputs, targets = _examples(inputs, 2)
    found = module(outputs.requires_grad_(), targets)
    if not found.requires_grad:
        raise ConfigError(
            f"loss {name} has no gradient with respect to the model's outputs, so nothing could be learnt from it; "
            "compute it from them, without detach or numpy"
        )


def _check_alike(module: nn.Module, traced: Graph, inputs: tuple[Value, ...], name: str) -> None:
    """Raise BuildError when the graph says something else than the function, as it does after an `if` on values."""
    session = ort.InferenceSession(traced.to_model().SerializeToString(), providers=["CPUExecutionProvider"])
    asked = {value.name for value in traced.inputs}
    for samples in _TRIED:
        wanted = float(_answer(module, inputs, samples, name))
        given = dict(zip(("outputs", "targets"), _examples(inputs, samples), strict=True))
        found = float(session.run(None, {key: value.numpy() for key, value in given.items() if key in asked})[0])
        if not abs(found - wanted) <= _CLOSE * max(1.0, abs(wanted)):
            raise BuildError(
                f"loss {name} is {wanted:.6g} for {samples} random samples but {found:.6g} as it was traced: it "
                "decides by values or by the number of samples in Python; write that with torch.where and means"
            )
