"""The server's own learning: parameters of several members tuned at once on a small public set.

A member is a ratio, a device or a model; row m of theta [M, T] is its own. Losses of all members are summed, so that
one backward pass serves all and none sees another's gradient. Each member keeps its parameters of the epoch that was
best on held-out rows; the start counts as an epoch, so that tuning never leaves anything worse than it was there.
"""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from fedwright.protocol.support.steps import counted
from fedwright.server_runtime.blocks.convolutions import use_safe_convolutions
from fedwright.server_runtime.blocks.narrow_layers import channels_last, hasten
from fedwright.server_runtime.blocks.torch_device import on_device

Weights = Mapping[str, Tensor]
Forward = Callable[[Weights, Tensor], tuple[Tensor, ...]]
"""Weights and inputs to the logits of every exit."""

Build = Callable[[Tensor], Sequence[Weights]]
"""theta [M, T] to each member's weights."""

EVALUATION_BATCH = 500


@dataclass(frozen=True)
class Schedule:
    """How long and how fast; the rate is lr(e) = low + (high - low)(1 + cos(π e / period)) / 2, up and down again.

    work: how a person is told of it.
    """

    epochs: int
    batch: int = 32
    high: float = 1e-3
    low: float = 1e-5
    period: int = 4
    work: str = "tuning"

    def rate(self, epoch: int) -> float:
        """The learning rate of an epoch, counted from 0."""
        return self.low + 0.5 * (self.high - self.low) * (1 + math.cos(math.pi * epoch / self.period))


@dataclass(frozen=True)
class Examples:
    """The server's rows: x [n, …], labels [n] or None, and which rows are held out."""

    x: Tensor
    y: Tensor | None
    fit: Tensor
    held: Tensor

    @classmethod
    def of(cls, x: NDArray[Any], y: NDArray[Any] | None, *, holdout: float, seed: int, device: str) -> "Examples":
        """Hold out a share of the rows, at least one."""
        order = torch.from_numpy(np.random.default_rng(seed).permutation(len(x)))
        held = min(len(x) - 1, max(1, round(holdout * len(x))))
        labels = None if y is None else on_device(y, device)
        return cls(on_device(x, device), labels, order[held:], order[:held])


@dataclass(frozen=True)
class Goal:
    """What a member's logits should be: the rows' labels, or a teacher's logits [n, classes] (mean squared error)."""

    examples: Examples
    teacher: Tensor | None = None

    def loss(self, outputs: tuple[Tensor, ...], rows: Tensor) -> Tensor:
        """Mean over the rows and over the exits."""
        if self.teacher is not None:
            target = self.teacher[rows]
            losses = [functional.mse_loss(logits, target) for logits in outputs]
        else:
            assert self.examples.y is not None
            labels = self.examples.y[rows]
            losses = [functional.cross_entropy(logits, labels) for logits in outputs]
        return torch.stack(losses).mean()


@dataclass(frozen=True)
class TunedModel:
    """One row of theta: how its model computes and what it should say."""

    forward: Forward
    goal: Goal


def tune(
    theta: Tensor,
    build: Build,
    members: Sequence[TunedModel],
    *,
    schedule: Schedule,
    seed: int,
    extra: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """The tuned theta; `extra` adds a term of theta alone to the loss."""
    if not schedule.epochs or not theta.numel():
        return theta.detach()
    examples = members[0].goal.examples
    theta = theta.detach().clone().requires_grad_()
    optimizer = torch.optim.Adam([theta], lr=schedule.high, fused=True)
    generator = torch.Generator().manual_seed(seed)
    best, least = theta.detach().clone(), _held_out(theta, build, members)
    for epoch in counted(range(schedule.epochs), schedule.work):
        optimizer.param_groups[0]["lr"] = schedule.rate(epoch)
        order = examples.fit[torch.randperm(len(examples.fit), generator=generator)]
        for rows in torch.split(order, schedule.batch):
            optimizer.zero_grad(set_to_none=True)
            _backward(build(theta), members, rows)
            if extra is not None:
                extra(theta).backward()
            optimizer.step()
        now = _held_out(theta, build, members)
        better = now < least
        least = torch.where(better, now, least)
        best = torch.where(better[:, None], theta.detach(), best)
    return best


def _backward(models: Sequence[Weights], members: Sequence[TunedModel], rows: Tensor) -> None:
    """Add the gradient of all losses to theta; the maps of one member at a time are in memory."""
    x = members[0].goal.examples.x[rows]
    made: list[Tensor] = []
    gradients: list[Tensor] = []
    for weights, member in zip(models, members, strict=True):
        own = {name: value.detach().requires_grad_(value.requires_grad) for name, value in weights.items()}
        learned = [name for name, value in weights.items() if value.requires_grad]
        loss = member.goal.loss(member.forward(own, x), rows)
        found = torch.autograd.grad(loss, [own[name] for name in learned], allow_unused=True)
        used = [(weights[name], value) for name, value in zip(learned, found, strict=True) if value is not None]
        made += [value for value, _ in used]
        gradients += [gradient for _, gradient in used]
    torch.autograd.backward(made, gradients)


def _losses(models: Sequence[Weights], members: Sequence[TunedModel], rows: Tensor) -> Tensor:
    x = members[0].goal.examples.x[rows]
    pairs = zip(models, members, strict=True)
    return torch.stack([member.goal.loss(member.forward(weights, x), rows) for weights, member in pairs])


def _held_out(theta: Tensor, build: Build, members: Sequence[TunedModel]) -> Tensor:
    """Mean loss of every member on the rows that it does not learn from [M]."""
    held = members[0].goal.examples.held
    with torch.no_grad():
        models = build(theta)
        parts = torch.split(held, EVALUATION_BATCH)
        losses = torch.stack([_losses(models, members, rows) * len(rows) for rows in parts])
        return losses.sum(0) / len(held)


def forward_of(module: nn.Module) -> Forward:
    """How a module computes from given weights; normalisation uses the statistics of the batch it sees."""
    use_safe_convolutions()
    module = copy.deepcopy(module)
    hasten(module)
    module.train()
    for layer in module.modules():
        if isinstance(layer, nn.modules.dropout._DropoutNd):
            layer.eval()
    names = {name for name, _ in module.named_parameters()}
    # Looking for tied weights at every call takes as long as a small layer.
    tied = len(names) < len(list(module.named_parameters(remove_duplicate=False)))

    def forward(weights: Weights, x: Tensor) -> tuple[Tensor, ...]:
        if x.ndim == 4:
            x = channels_last(x)
        made = functional_call(module, {name: weights[name] for name in names}, (x,), tie_weights=tied)
        return made if isinstance(made, tuple) else (made,)

    return forward


def logits_of(forward: Forward, weights: Weights, x: Tensor) -> Tensor:
    """The last exit's logits for all rows, without gradients."""
    with torch.no_grad():
        return torch.cat([forward(weights, rows)[-1] for rows in torch.split(x, EVALUATION_BATCH)])


def recalibrated(module: nn.Module, weights: Weights, x: Tensor) -> dict[str, Tensor]:
    """Running statistics of a module with these weights: means over one pass through x; empty without any."""
    module = copy.deepcopy(module).to(x.device)
    layers = [layer for layer in module.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
    if not any(layer.track_running_stats for layer in layers):
        return {}
    module.load_state_dict(dict(weights), strict=False)
    module.train()
    for layer in layers:
        layer.reset_running_stats()
        # The plain mean over all batches instead of a moving one.
        layer.momentum = None
    with torch.no_grad():
        for rows in torch.split(x, EVALUATION_BATCH):
            if len(rows) > 1:
                module(rows)
    return {name: value for name, value in module.named_buffers() if name in weights}


def flat(weights: Weights) -> Tensor:
    """All tensors as one row of theta [1, T]."""
    return torch.cat([value.reshape(-1) for value in weights.values()])[None]


def unflat(theta: Tensor, like: Weights) -> dict[str, Tensor]:
    """The tensors that `flat` was given."""
    parts = torch.split(theta.reshape(-1), [value.numel() for value in like.values()])
    return {name: part.reshape(value.shape) for (name, value), part in zip(like.items(), parts, strict=True)}
