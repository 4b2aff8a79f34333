"""Refuses modules of which no artifact can be made, before anything is built."""

import torch
from torch import nn

from fedwright.protocol.errors import BuildError
from fedwright.server_runtime.spec import Structure


def check_layers(module: nn.Module, structure: Structure) -> None:
    """Raise BuildError for weights that are no numbers, and for a private structure whose layers mix samples."""
    for name, value in module.named_parameters():
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise BuildError(
                f"parameter {name} of {structure.spec.model} holds NaN or infinity; give it finite weights before it "
                "is sent to devices"
            )
    if structure.private and any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in module.modules()):
        raise BuildError(
            f"{structure.spec.model} has batch normalisation, which mixes samples so that none can be hidden; use a "
            f"model with group normalisation, such as resnet8-gn or cnn-gn"
        )
