"""A network that writes the weights of other networks from a description of whom they are for.

trunk   h = f(v), a few linear layers; with `norm` h = tanh(·) centred and scaled to ||h|| = norm, less where faint
heads   omega = W h + b, the heads of all target tensors side by side in one matrix W [d, hidden]
chunked omega = b + concat_c(W h([v; e_c])), one head of `chunk` outputs shared by all pieces c, for large targets
project omega ← omega + U tanh(V omega) / sqrt(r), U [d, r], V [r, d]: a learnt projection behind the heads

Learning moves omega towards what a device made of it: with change = final - initial, the gradient of
1/2 ||omega - final||^2 is -change, so phi ← phi - rate * mean_n J_n' (-change_n).
"""

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fedwright.protocol.errors import ConfigError
from fedwright.server_runtime.blocks.torch_device import on_device

Array = NDArray[Any]
Tensors = dict[str, Array]

# Participants are generated and differentiated this many at a time, so that memory does not grow with their number.
BATCH = 32
# Below this root mean square the hidden vector stays short: the mean descriptor says nothing, and b speaks for all.
FAINT = 0.3
HEAD, BIAS, PIECES, PROJECT_IN, PROJECT_OUT = "head.weight", "head.bias", "pieces", "project.in", "project.out"
PENDING_INPUTS, PENDING_CHANGES, PENDING_WEIGHTS = "pending.inputs", "pending.changes", "pending.weights"
MOMENTUM, FOLDED, FOLDED_WEIGHT, HELD = "momentum/", "folded/", "folded.weight", "folded.held"


@dataclass(frozen=True)
class HypernetForm:
    """How a hypernetwork is made; `chunk` outputs at a time with piece embeddings of size `piece` (None = all at once).

    shared: only b learns, so that everyone gets the same weights (the ablation without personalisation).
    keep_scale: the trunk starts without biases and such that ||h|| is about ||v||, times sqrt(hidden / inputs); torch's
    start shrinks what is read in every layer and puts a common part to it, so that all devices look alike.
    sequential: a step for each change in turn instead of one for their mean.
    by_entry: the rows of W and b follow the mean over the changes that are not zero there, for devices that only have
    parts; it is over 1 + ||h||² changes at least, so that with a rate of 1 a single device lands on its result.
    """

    inputs: int
    hidden: int
    layers: int = 1
    norm: float | None = None
    chunk: int | None = None
    piece: int = 32
    shared: bool = False
    keep_scale: bool = False
    sequential: bool = False
    by_entry: bool = False
    project: int = 0


@dataclass(frozen=True)
class Step:
    """The optimizer of a hypernetwork: SGD; the norm of the mean gradient is clipped first."""

    rate: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip_norm: float | None = None


@dataclass(frozen=True)
class HypernetStart:
    """How it begins: b is a network that can learn already, W is small (`spread` by tensor, else `default_spread`)."""

    weights: Mapping[str, Array]
    spread: Mapping[str, float]
    default_spread: float = 1e-3


class Hypernet:
    """Generates weights for many descriptions at once and learns from the changes that devices made to them."""

    def __init__(self, form: HypernetForm, start: HypernetStart, *, seed: int, device: str = "cpu") -> None:
        self.form = form
        self._device = torch.device(device)
        self._shapes = {name: value.shape for name, value in start.weights.items()}
        self._values = {name: on_device(value, self._device) for name, value in _initial(form, start, seed).items()}
        self._momentum: dict[str, Tensor] = {}
        self._pending: list[tuple[Array, Array, float]] = []
        # The sum of weight * J' (-change) over changes that are folded in already, and of their weights.
        self._folded: dict[str, Tensor] = {}
        self._weight = 0.0
        # With `by_entry`, the sum of weights of the changes that are not zero in each entry.
        self._held = torch.zeros(self.outputs if form.by_entry else 0, device=self._device)

    @property
    def outputs(self) -> int:
        """How many weights it writes."""
        return sum(math.prod(shape) for shape in self._shapes.values())

    @property
    def parameters(self) -> int:
        """How many weights it has itself."""
        return sum(value.numel() for value in self._values.values())

    def generate(self, inputs: Array, values: Mapping[str, Array] | None = None) -> list[Tensors]:
        """The weights for each row of `inputs` [n, descriptor]; values: as it was when it had these of its own."""
        made: list[Tensors] = []
        own = self._values if values is None else {name: self._tensor(values[name]) for name in self._values}
        with torch.no_grad():
            for rows in self.shards(inputs):
                flat = self._forward(own, self._tensor(rows)).cpu().numpy()
                made += [self._split(row) for row in flat]
        return made

    def shards(self, inputs: Array) -> list[Array]:
        """The rows as they are written together: products over more of them at a time have other last bits."""
        return _batches(self._checked(inputs), self._batch())

    def writer(self) -> "Hypernet":
        """The same without what it is to learn from, to be sent to where weights are written."""
        made = copy.copy(self)
        made._pending, made._folded, made._momentum = [], {}, {}
        return made

    def add(self, row: Array, change: Mapping[str, Array], weight: float = 1.0) -> None:
        """Remember what a device made of the weights for this description: final minus initial."""
        self._pending.append((self._checked(row[None])[0], self._joined(change), weight))
        if len(self._pending) >= self._batch() and not self.form.sequential:
            self._fold()

    def reach(self, inputs: Array, step: Step) -> float:
        """How far a step moves the weights, where 1 is the device's result and above 2 diverges.

        rate (1 + ||h||²); by entry, where devices share a step, rate * λ_max((1 + <h_n, h_m>)_nm) / n.
        """
        with torch.no_grad():
            hidden = self._trunk(self._values, self._with_pieces(self._values, self._tensor(self._checked(inputs))))
            alike = 2.0 if self.form.project else 1.0
            if self.form.by_entry and self.form.chunk is None:
                least = max(float(len(inputs)), 1.0 + (self.form.norm or 1.0) ** 2)
                return float(step.rate * torch.linalg.eigvalsh(alike + hidden @ hidden.T).max() / least)
            return float(step.rate * (alike + (hidden * hidden).sum(-1).max()))

    def check_step(self, inputs: Array, step: Step) -> float:
        """`reach`, or an error when that step cannot be stable."""
        reach = self.reach(inputs, step)
        limit = 2.0 * (1.0 + step.momentum)
        # A unit hidden vector and a rate of 1 lie on the limit, and a mean over devices stays within it.
        if not reach <= limit * (1.0 + 1e-3):
            raise ConfigError(
                f"a hypernetwork step of {step.rate:g} moves the generated weights {reach:.2g} times as far as the "
                f"device did and must not exceed {limit:.2g}; lower the rate to about {step.rate / reach:.2g}"
            )
        return reach

    def learn(self, step: Step) -> float:
        """Follow the mean of the remembered changes, or each in turn; returns the norm of the last gradient."""
        if not self.form.sequential:
            return self._learn(step)
        pending, norm = self._pending, 0.0
        for entry in pending:
            self._pending = [entry]
            # Among others a change is weighed by their mean; alone it is by the length of its step.
            norm = self._learn(step, share=entry[2])
        return norm

    def rewrite_inputs(self, before: Array, after: Array) -> None:
        """Descriptions are written in another way from now on: what is generated for these [n, inputs] stays.

        W ← W R with R h(after_n) = h(before_n), and R = 1 where none of them speaks; nearest for more than `hidden`.
        """
        with torch.no_grad():
            old, new = (self._hidden(self._tensor(self._checked(rows))).double() for rows in (before, after))
            turn = torch.linalg.lstsq(new, old - new, rcond=1e-6, driver="gelsd").solution
            self._values[HEAD] += (self._values[HEAD].double() @ turn.T).float()

    def _hidden(self, rows: Tensor) -> Tensor:
        """[n · pieces, hidden]."""
        found = self._trunk(self._values, self._with_pieces(self._values, rows))
        return found.reshape(-1, found.shape[-1])

    def input_gradient(self, row: Array, change: Mapping[str, Array]) -> Array:
        """J' (-change) with respect to the description itself, for descriptions that are learnt."""
        given = self._tensor(self._checked(row[None])).requires_grad_()
        pull = -self._tensor(self._joined(change)[None])
        (grad,) = torch.autograd.grad(self._forward(self._values, given), given, pull)
        found: Array = grad[0].cpu().numpy()
        return found

    def values(self) -> Tensors:
        """Its own weights."""
        return {name: value.cpu().numpy().copy() for name, value in self._values.items()}

    def state(self) -> Tensors:
        """All that it depends on, as arrays."""
        state = self.values()
        state |= {MOMENTUM + name: value.cpu().numpy().copy() for name, value in self._momentum.items()}
        if self._pending:
            inputs, changes, weights = zip(*self._pending, strict=True)
            state[PENDING_INPUTS], state[PENDING_CHANGES] = np.stack(inputs), np.stack(changes)
            state[PENDING_WEIGHTS] = np.array(weights, np.float64)
        if self._folded:
            state |= {FOLDED + name: value.cpu().numpy().copy() for name, value in self._folded.items()}
            state[FOLDED_WEIGHT] = np.array(self._weight, np.float64)
            state[HELD] = self._held.cpu().numpy().copy()
        return state

    def restore(self, state: Mapping[str, Array]) -> None:
        """Continue from a saved state."""
        self._values = {name: self._tensor(state[name].copy()) for name in self._values}
        self._momentum = {
            name: self._tensor(state[MOMENTUM + name].copy()) for name in self._values if MOMENTUM + name in state
        }
        self._folded = {n: self._tensor(state[FOLDED + n].copy()) for n in self._values if FOLDED + n in state}
        self._weight = float(state.get(FOLDED_WEIGHT, 0.0))
        self._held = self._tensor(state[HELD].copy()) if HELD in state else torch.zeros_like(self._held)
        self._pending = []
        if PENDING_INPUTS in state:
            parts = (state[PENDING_INPUTS], state[PENDING_CHANGES], state[PENDING_WEIGHTS])
            self._pending = [(row, change, float(weight)) for row, change, weight in zip(*parts, strict=True)]

    def _learn(self, step: Step, *, share: float = 1.0) -> float:
        self._fold()
        gradient, weight, held = self._folded, self._weight, self._held
        self._folded, self._weight, self._held = {}, 0.0, torch.zeros_like(held)
        if weight <= 0:
            return 0.0
        means = {name: self._mean(name, value, weight, held) for name, value in gradient.items()}
        return self._descend(means, step, share)

    def _mean(self, name: str, total: Tensor, weight: float, held: Tensor) -> Tensor:
        """A summed gradient as a mean, over all changes or over those that an entry took part in."""
        if not self.form.by_entry or name not in (HEAD, BIAS, PROJECT_OUT) or len(total) != len(held):
            return total.div_(weight)
        least = 1.0 + (self.form.norm or 1.0) ** 2
        return total.div_(held.clamp(min=least).reshape(-1, *(1,) * (total.ndim - 1)))

    def _fold(self) -> None:
        """Vector-Jacobian products of the remembered changes, so that memory does not grow with their number."""
        if not self._pending:
            return
        rows = self._tensor(np.stack([row for row, _, _ in self._pending]))
        pulls = self._tensor(np.stack([change * np.float32(-weight) for _, change, weight in self._pending]))
        for name, gradient in self._pulled(rows, pulls).items():
            kept = self._folded.get(name)
            self._folded[name] = gradient if kept is None else kept.add_(gradient)
        self._weight += sum(weight for _, _, weight in self._pending)
        if self.form.by_entry:
            weights = self._tensor(np.array([weight for _, _, weight in self._pending], np.float32))
            self._held = self._held + weights @ (pulls != 0).float()
        self._pending = []

    def _pulled(self, rows: Tensor, pulls: Tensor) -> dict[str, Tensor]:
        """Σ_n J_n' pull_n for everything that learns."""
        if self.form.shared:
            return {BIAS: pulls.sum(0)}
        if self.form.chunk is not None or self.form.project:
            live = {name: value.detach().requires_grad_() for name, value in self._values.items()}
            found = torch.autograd.grad(self._forward(live, rows), list(live.values()), pulls)
            return dict(zip(live, found, strict=True))
        # Linear heads need no forward pass of their own: dW = pulls' h, db = Σ pulls, dh = pulls W.
        trunk = {n: value.detach().requires_grad_() for n, value in self._values.items() if n not in (HEAD, BIAS)}
        hidden = self._trunk(trunk, rows)
        found = torch.autograd.grad(hidden, list(trunk.values()), pulls @ self._values[HEAD])
        return dict(zip(trunk, found, strict=True)) | {HEAD: pulls.T @ hidden.detach(), BIAS: pulls.sum(0)}

    def _descend(self, gradient: dict[str, Tensor], step: Step, share: float) -> float:
        norm = math.sqrt(sum(float(torch.linalg.vector_norm(value)) ** 2 for value in gradient.values()))
        scale = share if step.clip_norm is None or norm <= step.clip_norm else share * step.clip_norm / norm
        for name, value in gradient.items():
            pull = value if scale == 1.0 else value.mul_(scale)
            if step.weight_decay:
                pull = pull.add_(self._values[name], alpha=step.weight_decay)
            if step.momentum:
                kept = self._momentum.get(name)
                pull = self._momentum[name] = pull if kept is None else kept.mul_(step.momentum).add_(pull)
            self._values[name].sub_(pull, alpha=step.rate)
        return norm

    def _forward(self, values: Mapping[str, Tensor], rows: Tensor) -> Tensor:
        """[n, inputs] to [n, d]."""
        hidden = self._trunk(values, self._with_pieces(values, rows))
        written = hidden @ values[HEAD].T
        if self.form.chunk is not None:
            written = written.reshape(len(rows), -1)[:, : self.outputs]
        written = written + values[BIAS]
        if self.form.project:
            inner = torch.tanh(written @ values[PROJECT_IN].T) / math.sqrt(self.form.project)
            written = written + inner @ values[PROJECT_OUT].T
        return written

    def _with_pieces(self, values: Mapping[str, Tensor], rows: Tensor) -> Tensor:
        """Every row once per piece, with the piece's embedding behind it."""
        if self.form.chunk is None:
            return rows
        pieces = values[PIECES]
        many = rows[:, None, :].expand(-1, len(pieces), -1)
        return torch.cat([many, pieces.expand(len(rows), -1, -1)], dim=-1)

    def _trunk(self, values: Mapping[str, Tensor], rows: Tensor) -> Tensor:
        for layer in range(self.form.layers):
            if layer:
                rows = torch.relu(rows)
            rows = functional.linear(rows, values[f"trunk{layer}.weight"], values[f"trunk{layer}.bias"])
        if self.form.norm is not None:
            rows = torch.tanh(rows)
            rows = rows - rows.mean(-1, keepdim=True)
            length = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
            rows = rows * (self.form.norm / length.clamp(min=FAINT * math.sqrt(self.form.hidden)))
        return rows

    def _batch(self) -> int:
        """Large targets one participant at a time."""
        return 1 if self.form.chunk is not None else BATCH

    def _checked(self, inputs: Array) -> Array:
        if inputs.ndim != 2 or inputs.shape[1] != self.form.inputs:
            raise ConfigError(
                f"a description has {inputs.shape[-1]} numbers but the hypernetwork reads {self.form.inputs}; "
                f"all devices must describe their data in the same way"
            )
        if not np.isfinite(inputs).all():
            raise ConfigError("a description holds numbers that are not finite; look for broken values in its data")
        return np.asarray(inputs, np.float32)

    def _tensor(self, array: Array) -> Tensor:
        return on_device(array, self._device)

    def _joined(self, change: Mapping[str, Array]) -> Array:
        """All tensors as one vector [d], in the order in which they are written."""
        if change.keys() != self._shapes.keys():
            odd = sorted(change.keys() ^ self._shapes.keys())[:3]
            raise ValueError(f"a change must name every generated tensor and no other, unlike {', '.join(odd)}")
        return np.concatenate([np.asarray(change[name], np.float32).reshape(-1) for name in self._shapes])

    def _split(self, flat: Array) -> Tensors:
        """What `_joined` was given."""
        found, end = {}, 0
        for name, shape in self._shapes.items():
            start, end = end, end + math.prod(shape)
            found[name] = flat[start:end].reshape(shape)
        return found


def _initial(form: HypernetForm, start: HypernetStart, seed: int) -> Tensors:
    """The trunk; head weights small, head bias the start weights."""
    rng = np.random.default_rng(seed)
    values: Tensors = {}
    width = form.inputs + (form.piece if form.chunk is not None else 0)
    for layer in range(form.layers):
        values[f"trunk{layer}.weight"], values[f"trunk{layer}.bias"] = _linear(rng, form, layer, width)
        width = form.hidden
    flat = [np.asarray(value, np.float32).reshape(-1) for value in start.weights.values()]
    values[BIAS] = np.concatenate(flat)
    if form.project:
        size = values[BIAS].size
        spread = 1.0 / max(1e-6, float(np.linalg.norm(values[BIAS])))
        values[PROJECT_IN] = rng.normal(0.0, spread, (form.project, size)).astype(np.float32)
        values[PROJECT_OUT] = np.zeros((size, form.project), np.float32)
    if form.chunk is None:
        rows = [
            _head(rng, part.size, form, start.spread.get(name, start.default_spread))
            for name, part in zip(start.weights, flat, strict=True)
        ]
        values[HEAD] = np.concatenate(rows)
        return values
    values[HEAD] = _head(rng, form.chunk, form, start.default_spread)
    pieces = -(-values[BIAS].size // form.chunk)
    values[PIECES] = rng.normal(0.0, 1.0, (pieces, form.piece)).astype(np.float32)
    return values


def _linear(rng: np.random.Generator, form: HypernetForm, layer: int, width: int) -> tuple[Array, Array]:
    """A layer of the trunk as torch makes it, or one that keeps the scale: a ReLU before it halves the squares."""
    if form.keep_scale:
        spread = np.float32(math.sqrt((2.0 if layer else 1.0) / width))
        weight = rng.standard_normal((form.hidden, width), dtype=np.float32) * spread
        return weight, np.zeros(form.hidden, np.float32)
    bound = 1.0 / math.sqrt(width)
    weight = rng.uniform(-bound, bound, (form.hidden, width)).astype(np.float32)
    return weight, rng.uniform(-bound, bound, form.hidden).astype(np.float32)


def _head(rng: np.random.Generator, rows: int, form: HypernetForm, spread: float) -> Array:
    # Drawn even where it is not used, so that forms with one seed share the rest of their weights.
    drawn = rng.standard_normal((rows, form.hidden), dtype=np.float32) * np.float32(spread)
    return np.zeros_like(drawn) if form.shared else drawn


def _batches(rows: Array, size: int) -> list[Array]:
    return [rows[start : start + size] for start in range(0, len(rows), size)]
