"""Losses of torch in operators that every training graph can differentiate, with the same values and gradients."""

from typing import Any

import torch
from torch.nn import functional

from fedwright.server_runtime.artifacts.plain_forms import FORMS, plain

Tensor = torch.Tensor


def _reduced(values: Tensor, reduction: str) -> Tensor:
    if reduction == "none":
        return values
    return values.mean() if reduction == "mean" else values.sum()


@plain(functional.l1_loss)
def _l1(x: Tensor, target: Tensor, *_: Any, reduction: str = "mean", **__: Any) -> Tensor:
    return _reduced((x - target).abs(), reduction)


@plain(functional.huber_loss)
def _huber(x: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0, weight: Any = None) -> Any:
    if weight is not None:
        return NotImplemented
    away = (x - target).abs()
    return _reduced(torch.where(away < delta, 0.5 * away * away, delta * (away - 0.5 * delta)), reduction)


@plain(functional.smooth_l1_loss)
def _smooth_l1(x: Tensor, target: Tensor, *_: Any, reduction: str = "mean", beta: float = 1.0, **__: Any) -> Any:
    if beta == 0:
        return _reduced((x - target).abs(), reduction)
    away = (x - target).abs()
    return _reduced(torch.where(away < beta, 0.5 / beta * away * away, away - 0.5 * beta), reduction)


@plain(functional.binary_cross_entropy)
def _binary(x: Tensor, target: Tensor, weight: Any = None, *_: Any, reduction: str = "mean", **__: Any) -> Tensor:
    """Logarithms are cut off at -100, as torch does."""
    terms = -(target * x.log().clamp(min=-100) + (1 - target) * (1 - x).log().clamp(min=-100))
    return _reduced(terms if weight is None else weight * terms, reduction)


@plain(functional.binary_cross_entropy_with_logits)
def _binary_logits(x: Tensor, target: Tensor, weight: Any = None, *_: Any, **more: Any) -> Tensor:
    """log(1 + e^z) - z t, which holds for large z too; positives may count more."""
    positive = more.get("pos_weight")
    if positive is None:
        terms = functional.softplus(x) - x * target
    else:
        terms = (1 - target) * x + (1 + (positive - 1) * target) * functional.softplus(-x)
    return _reduced(terms if weight is None else weight * terms, more.get("reduction", "mean"))


@plain(functional.poisson_nll_loss)
def _poisson(x: Tensor, target: Tensor, log_input: bool = True, full: bool = False, *_: Any, **more: Any) -> Any:
    if full:
        return NotImplemented
    terms = x.exp() - target * x if log_input else x - target * (x + more.get("eps", 1e-8)).log()
    return _reduced(terms, more.get("reduction", "mean"))


@plain(functional.soft_margin_loss)
def _soft_margin(x: Tensor, target: Tensor, *_: Any, reduction: str = "mean", **__: Any) -> Tensor:
    return _reduced(functional.softplus(-target * x), reduction)


@plain(functional.cross_entropy)
def _cross_entropy(x: Tensor, target: Tensor, weight: Any = None, *_: Any, **more: Any) -> Any:
    """The classes stand on axis 1; targets are classes, or the chance of each."""
    smoothing, reduction = more.get("label_smoothing", 0.0), more.get("reduction", "mean")
    if x.ndim < 2 or reduction == "none":
        return NotImplemented
    log_p, classes = functional.log_softmax(x, dim=1), int(x.shape[1])
    each = torch.ones(classes) if weight is None else weight
    spread = each.reshape(1, classes, *(1,) * (x.ndim - 2))
    if target.is_floating_point():
        wanted = (1 - smoothing) * target + smoothing / classes
        total = -(wanted * log_p * spread).sum()
        return total if reduction == "sum" else total / (log_p.sum(dim=1) * 0 + 1).sum()
    there = target != more.get("ignore_index", -100)
    known = torch.where(there, target, torch.zeros_like(target))
    counts = each[known] * there
    total = -(1 - smoothing) * (counts * log_p.gather(1, known.unsqueeze(1)).squeeze(1)).sum()
    if smoothing:
        total = total - smoothing / classes * ((log_p * spread).sum(dim=1) * there).sum()
    return total if reduction == "sum" else total / counts.sum()


@plain(functional.nll_loss)
def _nll(x: Tensor, target: Tensor, weight: Any = None, *_: Any, **more: Any) -> Any:
    if x.ndim < 2 or more.get("reduction", "mean") == "none":
        return NotImplemented
    there = target != more.get("ignore_index", -100)
    known = torch.where(there, target, torch.zeros_like(target))
    counts = (torch.ones(int(x.shape[1])) if weight is None else weight)[known] * there
    total = -(counts * x.gather(1, known.unsqueeze(1)).squeeze(1)).sum()
    return total if more.get("reduction", "mean") == "sum" else total / counts.sum()


KNOWN = tuple(sorted(function.__name__ for function, form in FORMS.items() if form.__module__ == __name__))
