"""Stitches of several candidates tuned in one pass; what their frozen blocks make before the first stitch is reused."""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedwright.server_runtime.blocks.views import nt_xent, view

PASS = 128


@dataclass(frozen=True)
class Tuning:
    """Adam over the stitches (or `everything`): cross-entropy with labels, NT-Xent over two views without."""

    epochs: int = 3
    rate: float = 1e-3
    batch: int = 64
    temperature: float = 0.07
    everything: bool = False


@dataclass(frozen=True)
class Candidate:
    """Blocks behind their stitches; keys: what each block is, so that equal beginnings are computed once."""

    stitches: nn.ModuleList
    blocks: nn.ModuleList
    keys: tuple[Hashable, ...]

    @property
    def lead(self) -> int:
        """How many blocks stand before the first stitch."""
        stitched = [i for i, stitch in enumerate(self.stitches) if not isinstance(stitch, nn.Identity)]
        return stitched[0] if stitched else len(self.blocks)

    def run(self, x: Tensor, start: int = 0, end: int | None = None) -> Tensor:
        """From one block to another."""
        for stitch, block in zip(self.stitches[start:end], self.blocks[start:end], strict=True):
            x = block(stitch(x))
        return x


def refresh_norms(candidate: Candidate, x: Tensor) -> None:
    """Running statistics of batch normalisation, anew from what reaches each layer now."""
    norms = [
        layer
        for block in candidate.blocks
        for layer in block.modules()
        if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d) and layer.track_running_stats
    ]
    _freeze(candidate)
    if not norms:
        return
    usual = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        # None: the mean over all batches.
        norm.momentum = None
        norm.train()
    with torch.no_grad():
        for part in torch.split(x, PASS):
            # One row alone has no variance.
            if len(part) > 1:
                candidate.run(part)
    for norm, momentum in zip(norms, usual, strict=True):
        norm.momentum = momentum
        norm.eval()


def _freeze(candidate: Candidate) -> None:
    for module in (candidate.blocks, candidate.stitches):
        module.eval().requires_grad_(False)


def tune(candidates: Sequence[Candidate], x: Tensor, y: Tensor | None, tuning: Tuning, *, seed: int) -> None:
    """Tune all candidates on the same batches; their losses do not meet, so it is as if each were tuned alone."""
    open_ones = [c for c in candidates if tuning.everything or c.lead < len(c.blocks)]
    weights = [w for c in open_ones for w in _opened(c, everything=tuning.everything)]
    if not weights:
        return
    rng = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(weights, lr=tuning.rate)
    common = _Common(open_ones, tuning, x, y, rng)
    for _ in range(tuning.epochs):
        for rows in _batches(len(x), tuning.batch, rng):
            optimizer.zero_grad()
            common.loss(rows).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    for candidate in open_ones:
        _freeze(candidate)


def _opened(candidate: Candidate, *, everything: bool) -> Iterator[nn.Parameter]:
    modules = [candidate.stitches, candidate.blocks] if everything else [candidate.stitches]
    for module in modules:
        module.requires_grad_(True)
        yield from module.parameters()


@dataclass
class _Common:
    """What the candidates of one pass share: the examples and what frozen beginnings made of them."""

    candidates: Sequence[Candidate]
    tuning: Tuning
    x: Tensor
    y: Tensor | None
    rng: torch.Generator
    kept: dict[Hashable, Tensor] = field(default_factory=dict)

    def loss(self, rows: Tensor) -> Tensor:
        """The sum over candidates."""
        if self.y is not None:
            labels = self.y[rows]
            pairs = zip(self.candidates, self._beginnings(self.x, self.kept), strict=True)
            made = [c.run(start[rows], self._lead(c)) for c, start in pairs]
            return torch.stack([functional.cross_entropy(z, labels) for z in made]).sum()
        views = torch.cat([view(self.x[rows], self.rng), view(self.x[rows], self.rng)])
        both = zip(self.candidates, self._beginnings(views, {}), strict=True)
        halves = [c.run(start, self._lead(c)).chunk(2) for c, start in both]
        return torch.stack([nt_xent(one, other, self.tuning.temperature) for one, other in halves]).sum()

    def _lead(self, candidate: Candidate) -> int:
        return 0 if self.tuning.everything else candidate.lead

    def _beginnings(self, x: Tensor, kept: dict[Hashable, Tensor]) -> list[Tensor]:
        """What the frozen blocks before each candidate's first stitch make of x; once for equal beginnings."""
        found = []
        for candidate in self.candidates:
            lead = self._lead(candidate)
            key = candidate.keys[:lead]
            if lead and key not in kept:
                with torch.no_grad():
                    kept[key] = torch.cat([candidate.run(part, 0, lead) for part in torch.split(x, PASS)])
            found.append(kept[key] if lead else x)
        return found


def _batches(n: int, size: int, rng: torch.Generator) -> Iterator[Tensor]:
    order = torch.randperm(n, generator=rng)
    # A last batch of one row has no other to be told from.
    return (rows for rows in torch.split(order, size) if len(rows) > 1 or n == 1)


def logits_of(candidate: Candidate, x: Tensor) -> Tensor:
    """[n, classes]."""
    with torch.no_grad():
        return torch.cat([candidate.run(part) for part in torch.split(x, PASS)])


def agreement(logits: Tensor, others: Tensor) -> float:
    """mean_i cos(logits_i, others_i)."""
    return float(functional.cosine_similarity(logits, others, dim=1).mean())
