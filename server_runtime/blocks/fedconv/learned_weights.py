"""Aggregation with learned weights: W = base + Σ_j v_j s_j D_j / Σ_j s_j (FedConv).

s_j are the devices' samples; D_j is what a device's dilated model adds to the base (the model itself where the base is
zero). v is a factor per output channel, per layer or per entry of every device, starts at 1 (which is the plain mean)
and is tuned on the server's examples.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

import torch
from torch import Tensor

Weights = Mapping[str, Tensor]
Granularity = Literal["channel", "layer", "element"]


@dataclass(frozen=True)
class Weighing:
    """The devices' tensors stacked [devices, …], their samples, and what they are added to."""

    stacked: Weights
    shares: Tensor
    base: Weights
    granularity: Granularity

    @classmethod
    def of(
        cls, parts: Sequence[Weights], samples: Sequence[float], *, base: Weights, granularity: Granularity
    ) -> "Weighing":
        """From each device's part and its samples."""
        shares = torch.tensor(samples, dtype=torch.float32, device=next(iter(base.values())).device)
        stacked = {name: torch.stack([part[name] for part in parts]) for name in base}
        return cls(stacked, shares / shares.sum(), base, granularity)

    def start(self) -> Tensor:
        """v = 1 everywhere, as one row [1, …]."""
        return torch.ones(1, sum(prod(shape) for shape in self._shapes()), device=self.shares.device)

    def model(self, v: Tensor) -> dict[str, Tensor]:
        """The aggregated model."""
        sizes = [prod(shape) for shape in self._shapes()]
        found = {}
        for part, shape, name in zip(torch.split(v.reshape(-1), sizes), self._shapes(), self.base, strict=True):
            factor = part.reshape(shape) * self.shares.reshape(-1, *[1] * (len(shape) - 1))
            found[name] = self.base[name] + (factor * self.stacked[name]).sum(0)
        return found

    def means(self, v: Tensor) -> Tensor:
        """Each device's mean factor over its layers [devices]."""
        sizes = [prod(shape) for shape in self._shapes()]
        parts = zip(torch.split(v.reshape(-1), sizes), self._shapes(), strict=True)
        return torch.stack([part.reshape(shape).flatten(1).mean(1) for part, shape in parts]).mean(0)

    def _shapes(self) -> list[tuple[int, ...]]:
        return [self._shape(value) for value in self.stacked.values()]

    def _shape(self, stacked: Tensor) -> tuple[int, ...]:
        devices, rest = stacked.shape[0], tuple(stacked.shape[1:])
        if self.granularity == "element":
            return (devices, *rest)
        channels = rest[:1] if self.granularity == "channel" else ()
        return (devices, *channels, *[1] * (len(rest) - len(channels)))


def divergences(models: Sequence[Weights], reference: Weights) -> Tensor:
    """Symmetric Kullback-Leibler divergence of each model from a reference, mean over tensors [models]; 0 = the same.

    Raw weights are no distribution: each tensor's softmax over all its entries is compared.
    """
    return torch.stack(
        [torch.stack([_symmetric(model[name], value) for name, value in reference.items()]).mean() for model in models]
    )


def _symmetric(one: Tensor, other: Tensor) -> Tensor:
    """KL(p || q) + KL(q || p) = Σ (p - q)(log p - log q)."""
    log_p, log_q = (torch.log_softmax(values.reshape(-1), 0) for values in (one, other))
    return ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum()


def penalty(weighing: Weighing, v: Tensor, distances: Tensor) -> Tensor:
    """Σ_j a_j KL_j with a = softmax of the devices' mean factors: weight given to far models costs.

    The printed term Σ_j KL_j does not depend on v and has no gradient.
    """
    return torch.softmax(weighing.means(v), 0) @ distances


def equalised(parts: Sequence[Weights], samples: Sequence[float]) -> list[dict[str, Tensor]]:
    """Every tensor at the samples-weighted mean of the devices' root mean squares."""
    total = sum(samples)
    found: list[dict[str, Tensor]] = [{} for _ in parts]
    for name in parts[0]:
        sizes = [part[name].square().mean().sqrt() for part in parts]
        mean = torch.stack([share / total * size for share, size in zip(samples, sizes, strict=True)]).sum()
        for made, part, size in zip(found, parts, sizes, strict=True):
            made[name] = part[name] * (mean / size.clamp_min(1e-12))
    return found
