"""The tensors of a torch module by their names: what is trained, what is kept beside it, what several layers share."""

from collections.abc import Iterator

import torch
from torch import nn


def saved_buffers(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """The buffers that are saved and hold floating-point numbers; all others are constants of the graph."""
    saved = module.state_dict().keys()
    return ((name, value) for name, value in module.named_buffers() if name in saved and value.is_floating_point())


def state_tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and saved buffers: the inputs of a graph beside the batch."""
    return {**dict(module.named_parameters()), **dict(saved_buffers(module))}


def shared_names(module: nn.Module) -> dict[str, str]:
    """Further names of parameters that several layers share -> the name that counts."""
    first = {id(value): name for name, value in module.named_parameters()}
    every = module.named_parameters(remove_duplicate=False)
    return {name: first[id(value)] for name, value in every if first[id(value)] != name}
