"""Stitches of several candidates, fitted by least squares and then tuned in one pass.

What frozen blocks make before the first stitch is computed once and reused.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedwright.protocol.support.steps import counted
from fedwright.server_runtime.blocks.fedconv.contrastive_views import nt_xent, view
from fedwright.server_runtime.blocks.narrow_layers import channels_last

PASS = 128
# Ridge of a least-squares fit, as a share of the mean square of what is fitted from.
RIDGE, TINY = 1e-3, 1e-8


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
            x = block(side_by_side(stitch(x)))
        return x


@dataclass
class Beginnings:
    """What the frozen blocks before first stitches make of all examples; once for candidates that begin alike."""

    x: Tensor
    kept: dict[Hashable, Tensor] = field(default_factory=dict)

    def of(self, candidate: Candidate, lead: int) -> Tensor:
        """What the candidate's first blocks give; the examples themselves where none is meant."""
        if not lead:
            return self.x
        key = candidate.keys[:lead]
        if key not in self.kept:
            with torch.no_grad():
                self.kept[key] = torch.cat([candidate.run(part, 0, lead) for part in torch.split(self.x, PASS)])
        return self.kept[key]


def side_by_side(x: Tensor) -> Tensor:
    """Maps with their channels side by side, in which narrow layers take less time; all else as it is."""
    return channels_last(x) if x.ndim == 4 else x


def refresh_norms(candidate: Candidate, x: Tensor) -> None:
    """Running statistics of batch normalisation, anew from what reaches each layer now."""
    _freeze(candidate)
    norms = [norm for block in candidate.blocks for norm in _norms(block)]
    if norms:
        _renorm(norms, lambda part: candidate.run(part), x)


def _norms(block: nn.Module) -> list[nn.BatchNorm1d | nn.BatchNorm2d]:
    return [
        layer
        for layer in block.modules()
        if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d) and layer.track_running_stats
    ]


def _renorm(norms: list[nn.BatchNorm1d | nn.BatchNorm2d], run: Callable[[Tensor], Tensor], x: Tensor) -> None:
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
                run(part)
    for norm, momentum in zip(norms, usual, strict=True):
        norm.momentum = momentum
        norm.eval()


def match(candidates: Sequence[Candidate], x: Tensor, wanted: Callable[[Hashable], Tensor]) -> list[Tensor]:
    """Set every stitch to the least-squares map from what reaches it to what its block took in its own model.

    wanted: what the block of a key took for x. Running statistics are taken anew on the way. Returns the logits [n,
    classes] of each candidate; what equal beginnings make is computed once.
    """
    kept: dict[tuple[Hashable, ...], tuple[nn.Module, nn.Module, Tensor]] = {}
    found = []
    for candidate in candidates:
        _freeze(candidate)
        now = x
        for place, key in enumerate(candidate.keys):
            beginning = candidate.keys[: place + 1]
            stitch, block = candidate.stitches[place], candidate.blocks[place]
            if beginning in kept:
                stitch.load_state_dict(kept[beginning][0].state_dict())
                block.load_state_dict(kept[beginning][1].state_dict())
            else:
                kept[beginning] = (stitch, block, _matched(stitch, block, now, wanted(key)))
            now = kept[beginning][2]
        found.append(now)
    return found


def _matched(stitch: nn.Module, block: nn.Module, x: Tensor, target: Tensor) -> Tensor:
    """Fit one stitch, refresh its block, and run both."""
    with torch.no_grad():
        if isinstance(stitch, nn.Sequential):
            _fit(stitch, x, target)
        x = stitch(x)
        norms = _norms(block)
        if norms:
            _renorm(norms, block, x)
        return cast(Tensor, block(x))


def _fit(stitch: nn.Sequential, x: Tensor, target: Tensor) -> None:
    """min over W, b of |z W' + b - target|² + ridge |W|², z what reaches the layer with weights."""
    at = next(i for i, layer in enumerate(stitch) if list(layer.parameters()))
    layer = cast(nn.Linear | nn.Conv1d | nn.Conv2d, stitch[at])
    z = stitch[:at](x)
    if not isinstance(layer, nn.Linear):
        # Every place of a map is one row of channels.
        z, target = z.movedim(1, -1).flatten(0, -2), target.movedim(1, -1).flatten(0, -2)
    z, target = z.flatten(1).double(), target.flatten(1).double()
    z_mean, target_mean = z.mean(0), target.mean(0)
    weight = ridge(z - z_mean, target - target_mean)
    layer.weight.copy_(weight.T.reshape(layer.weight.shape))
    if layer.bias is not None:
        layer.bias.copy_(target_mean - z_mean @ weight)


def ridge(z: Tensor, target: Tensor) -> Tensor:
    """W [in, out] = (z'z + r I)^-1 z' t = z' (z z' + r I)^-1 t, whichever is smaller; z [n, in], t [n, out]."""
    rows, width = z.shape
    penalty = RIDGE * float(z.square().sum()) / width + TINY
    if rows < width:
        gram = z @ z.T + penalty * torch.eye(rows, dtype=z.dtype, device=z.device)
        return cast(Tensor, z.T @ torch.linalg.solve(gram, target))
    gram = z.T @ z + penalty * torch.eye(width, dtype=z.dtype, device=z.device)
    return cast(Tensor, torch.linalg.solve(gram, z.T @ target))


def _freeze(candidate: Candidate) -> None:
    for module in (candidate.blocks, candidate.stitches):
        module.eval().requires_grad_(False)


def tune(candidates: Sequence[Candidate], begun: Beginnings, y: Tensor | None, tuning: Tuning, *, seed: int) -> None:
    """Tune all candidates on the same batches; their losses do not meet, so it is as if each were tuned alone."""
    open_ones = [c for c in candidates if tuning.everything or c.lead < len(c.blocks)]
    weights = [w for c in open_ones for w in _opened(c, everything=tuning.everything)]
    if not weights:
        return
    rng = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(weights, lr=tuning.rate)
    common = _Common(open_ones, tuning, begun, y, rng)
    for _ in counted(range(tuning.epochs), "tuning stitches"):
        for rows in _batches(len(begun.x), tuning.batch, rng):
            optimizer.zero_grad()
            common.loss(rows).backward()
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
    begun: Beginnings
    y: Tensor | None
    rng: torch.Generator

    def loss(self, rows: Tensor) -> Tensor:
        """The sum over candidates."""
        if self.y is not None:
            labels = self.y[rows]
            made = [self._run(c, self.begun, rows) for c in self.candidates]
            return torch.stack([functional.cross_entropy(z, labels) for z in made]).sum()
        x = self.begun.x[rows]
        views = Beginnings(side_by_side(torch.cat([view(x, self.rng), view(x, self.rng)])))
        halves = [self._run(c, views, None).chunk(2) for c in self.candidates]
        return torch.stack([nt_xent(one, other, self.tuning.temperature) for one, other in halves]).sum()

    def _run(self, candidate: Candidate, begun: Beginnings, rows: Tensor | None) -> Tensor:
        lead = 0 if self.tuning.everything else candidate.lead
        start = begun.of(candidate, lead)
        return candidate.run(start if rows is None else side_by_side(start[rows]), lead)


def _batches(n: int, size: int, rng: torch.Generator) -> Iterator[Tensor]:
    order = torch.randperm(n, generator=rng)
    # A last batch of one row has no other to be told from.
    return (rows for rows in torch.split(order, size) if len(rows) > 1 or n == 1)


def logits_of(candidate: Candidate, begun: Beginnings) -> Tensor:
    """[n, classes], of a candidate whose first blocks are as they were when they were run."""
    with torch.no_grad():
        start = begun.of(candidate, candidate.lead)
        return torch.cat([candidate.run(part, candidate.lead) for part in torch.split(start, PASS)])


def agreement(logits: Tensor, others: Tensor) -> float:
    """mean_i cos(logits_i, others_i)."""
    return float(functional.cosine_similarity(logits, others, dim=1).mean())
