"""A last layer that also answers through the last layers of others (FedConv's cross-cluster exchange).

    o = W x + b + λ Σ_j W_j P_j x        W [C, d], P_j [d_j, d] learned, W_j [C, d_j] given

All of it is linear, so that `folded` makes one layer of it again.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from fedwright.protocol.errors import ConfigError

PROJECTION, OTHER = "projection", "other"

Array = NDArray[Any]


class LinkedLinear(nn.Linear):
    """W x + b + λ Σ_j W_j P_j x; the projections begin at zero."""

    def __init__(self, layer: nn.Linear, widths: Sequence[int], share: float) -> None:
        super().__init__(layer.in_features, layer.out_features, layer.bias is not None)
        self.load_state_dict(layer.state_dict())
        self.share, self.count = share, len(widths)
        for number, width in enumerate(widths):
            setattr(self, f"{PROJECTION}{number}", nn.Parameter(torch.zeros(width, layer.in_features)))
            setattr(self, f"{OTHER}{number}", nn.Parameter(torch.zeros(layer.out_features, width)))

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        answers = super().forward(x)
        for number in range(self.count):
            seen = functional.linear(x, getattr(self, f"{PROJECTION}{number}"))
            answers = answers + self.share * functional.linear(seen, getattr(self, f"{OTHER}{number}"))
        return answers


def last_linear(module: nn.Module, classes: int) -> str:
    """The name of the last linear layer with one row per class; ConfigError where there is none."""
    found: list[str] = [
        name for name, layer in module.named_modules() if isinstance(layer, nn.Linear) and layer.out_features == classes
    ]
    if not found:
        raise ConfigError(
            f"the model has no last linear layer with one row for each of {classes} classes, which an exchange between "
            "clusters needs; leave out exchange, or give the model one"
        )
    return found[-1]


def add_links(module: nn.Module, classes: int, widths: Sequence[int], share: float) -> None:
    """Let a model's last layer answer through others, too."""
    owner, _, name = last_linear(module, classes).rpartition(".")
    parent = module.get_submodule(owner)
    layer = getattr(parent, name)
    setattr(parent, name, LinkedLinear(layer, widths, share))


def folded(weight: Array, projections: Sequence[Array], others: Sequence[Array], share: float) -> Array:
    """W + λ Σ_j W_j P_j, which answers the same."""
    total = weight.astype(np.float64)
    for projection, other in zip(projections, others, strict=True):
        total = total + share * (other.astype(np.float64) @ projection.astype(np.float64))
    return total.astype(weight.dtype)
