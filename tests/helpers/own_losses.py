"""Losses as users write them."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional


def huber(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Squared near by, absolute far off."""
    return functional.huber_loss(outputs, targets, delta=0.5)


def spread(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Gaussian likelihood: the first half of the outputs are means, the second half logarithms of variances."""
    mean, log_variance = outputs.chunk(2, dim=1)
    return (0.5 * (log_variance + (targets - mean) ** 2 / log_variance.exp())).mean()


def pinball(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Three quantiles of one target."""
    away = targets - outputs
    levels = torch.tensor([0.1, 0.5, 0.9])
    return torch.maximum(levels * away, (levels - 1) * away).mean()


def focal(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Cross-entropy that cares less about what is right already."""
    chance = functional.log_softmax(outputs, dim=1).gather(1, targets.unsqueeze(1)).exp()
    return (-((1 - chance) ** 2) * chance.log()).mean()


def dice(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """One minus the overlap of masks with two classes."""
    said, there = outputs.softmax(dim=1)[:, 1], targets.float()
    shared = (said * there).sum(dim=(1, 2))
    return 1 - ((2 * shared + 1) / (said.sum(dim=(1, 2)) + there.sum(dim=(1, 2)) + 1)).mean()


smooth = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5]), label_smoothing=0.1)
number = 3


def absolute(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Distances."""
    return functional.l1_loss(outputs, targets)


def rounded(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The older name of Huber's."""
    return functional.smooth_l1_loss(outputs, targets, beta=0.3)


def counts(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """How often something happens."""
    return functional.poisson_nll_loss(outputs, targets.abs())


def weighed(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Classes that are there count more."""
    weight = torch.tensor([2.0, 3.0])
    return functional.binary_cross_entropy_with_logits(outputs, targets, pos_weight=weight)


def some(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Places of the second class do not count."""
    return functional.cross_entropy(outputs, targets, ignore_index=1)


def margin(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Not known."""
    return functional.multi_margin_loss(outputs, (targets[:, 0] > 0).long())


def by_sample(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Forgets the mean."""
    return (outputs - targets) ** 2


def decides(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Says something else for large errors, in Python."""
    away = (outputs - targets).abs().mean()
    return away * 10 if float(away.detach()) > 1e-6 else away


def in_numpy(outputs: torch.Tensor, targets: torch.Tensor) -> Any:
    """Leaves torch."""
    return float((outputs.detach().numpy() - targets.numpy()).mean())


def deaf(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Does not look at the outputs."""
    return targets.mean()


def breaks(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Wants five columns."""
    return functional.mse_loss(outputs, targets.reshape(-1, 5))
