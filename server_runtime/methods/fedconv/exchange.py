"""FedConv's cross-cluster exchange: clusters that answer alike train their last layers on through each other's.

After local training the clusters' means are compared by what they answer for the server's examples (Eq. 7), and the
most alike pairs are linked. Every device of a linked cluster i then goes on from the cluster's mean, with its encoder
standing still:

    o_i = F_i(x_i) + λ Σ_j W_j P_ij x_i        F_i, P_ij [d_j, d_i] learned on the device, W_j given

F_i and P_ij are averaged inside the cluster. The global model gets F_i; P_ij is kept for the next round and, folded
into F_i, is part of the devices' own models. No features leave a device.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np

from fedwright.server_runtime.blocks.fedconv.cluster_exchange import answer_divergence
from fedwright.server_runtime.methods.base import Array, Emission, MethodState, Tensors
from fedwright.server_runtime.methods.fedconv.groups import PendingUpdate
from fedwright.server_runtime.methods.fedconv.server_training import DilatedUpdate
from fedwright.server_runtime.spec import ModelSpec
from fedwright.server_runtime.zoo.linked import OTHER, PROJECTION, folded

HELD, PROJECT, BETWEEN = "held/", "project/", "|"


@dataclass(frozen=True)
class HeldGroup:
    """A cluster between local training and the exchange, as a record of a state; the tensors lie beside it."""

    key: str
    spec: ModelSpec
    samples: float
    members: tuple[str, ...]
    links: tuple[str, ...]


@dataclass(frozen=True)
class TrainedGroup:
    """A cluster after local training: what it began with, its mean change, its devices, and whom it is linked with."""

    part: DilatedUpdate
    members: tuple[str, ...]
    links: tuple[str, ...] = ()

    @property
    def model(self) -> Tensors:
        """The cluster's mean model."""
        return {name: value + self.part.change[name] for name, value in self.part.sent.items()}


@dataclass
class Exchange:
    """What an exchange keeps: projections from round to round, clusters and what came of them inside a round.

    layer: the name of the last linear layer. share: λ.
    """

    layer: str
    share: float
    projections: dict[tuple[str, str], Array] = field(default_factory=dict)
    held: dict[str, TrainedGroup] = field(default_factory=dict)
    _brought: dict[str, PendingUpdate] = field(default_factory=dict)

    @property
    def head(self) -> str:
        """The weight of the last layer."""
        return f"{self.layer}.weight"

    def trainable(self) -> tuple[str, ...]:
        """What learns in the exchange: F_i and P_ij."""
        return self.head, f"{self.layer}.bias", f"{self.layer}.{PROJECTION}"

    def group_of(self, device: str) -> str:
        """The linked cluster of a device in this round."""
        return next(key for key, group in self.held.items() if device in group.members)

    def linked_spec(self, key: str) -> ModelSpec:
        """A cluster's model with room for its projections."""
        group = self.held[key]
        widths = tuple(int(self.held[other].part.sent[self.head].shape[1]) for other in group.links)
        return replace(group.part.spec, links=widths, link_share=self.share)

    def emission(self, key: str) -> Emission:
        """What the devices of a cluster go on from: the last layer and projections learn, the rest stands still."""
        group = self.held[key]
        weights: Tensors = {}
        frozen: Tensors = {}
        for name, value in group.model.items():
            (weights if name.startswith(self.trainable()) else frozen)[name] = value.astype(np.float32)
        for number, other in enumerate(group.links):
            theirs = self.held[other].model[self.head].astype(np.float32)
            frozen[f"{self.layer}.{OTHER}{number}"] = theirs
            weights[f"{self.layer}.{PROJECTION}{number}"] = self._projection(key, other)
        return Emission(weights, frozen=frozen, passing=True)

    def _projection(self, key: str, other: str) -> Array:
        """P_ij as it was learned so far, from zero."""
        shape = (self.held[other].part.sent[self.head].shape[1], self.held[key].part.sent[self.head].shape[1])
        kept = self.projections.get((key, other))
        return kept if kept is not None and kept.shape == shape else np.zeros(shape, np.float32)

    def add(self, key: str, change: Tensors, samples: float) -> None:
        """Take in what a device, or several, made of F_i and P_ij."""
        self._brought.setdefault(key, PendingUpdate(self.held[key].part.spec)).add(change, samples)

    def own_model(self, key: str, change: Tensors) -> Tensors:
        """A model after the exchange, its projections folded into its last layer."""
        group, start = self.held[key], self.emission(key)
        moved = {name: value + change[name] for name, value in start.weights.items()}
        projections = [moved[f"{self.layer}.{PROJECTION}{number}"] for number in range(len(group.links))]
        others = [start.frozen[f"{self.layer}.{OTHER}{number}"] for number in range(len(group.links))]
        model = {name: moved.get(name, value).astype(value.dtype) for name, value in group.model.items()}
        return model | {self.head: folded(moved[self.head], projections, others, self.share)}

    def close(self) -> dict[str, DilatedUpdate]:
        """What every cluster brings to the global model; projections are kept, and nothing of the round is left."""
        found = {key: group.part for key, group in self.held.items()}
        learned: dict[tuple[str, str], Array] = {}
        for key, brought in sorted(self._brought.items()):
            part, change, start = found[key], brought.mean(), self.emission(key).weights
            more = {name: part.change[name] + change[name] for name in change if name in part.change}
            found[key] = replace(part, change={**part.change, **more})
            for number, other in enumerate(self.held[key].links):
                name = f"{self.layer}.{PROJECTION}{number}"
                learned[key, other] = start[name] + change[name]
        self.projections |= learned
        self.held, self._brought = {}, {}
        return found

    def forget(self) -> None:
        """Drop what came since the last stage was closed."""
        self._brought = {}

    def state(self) -> MethodState:
        """Projections and, between the two trainings of a round, the clusters."""
        tensors = {PROJECT + BETWEEN.join(pair): value for pair, value in self.projections.items()}
        records = []
        for number, (key, group) in enumerate(sorted(self.held.items())):
            part = group.part
            tensors |= {f"{HELD}{number}/{name}": value for name, value in part.change.items()}
            records.append(HeldGroup(key, part.spec, part.samples, group.members, group.links))
        return MethodState.of(tensors, held=records)

    def restore(self, state: MethodState, sent: Mapping[ModelSpec, Tensors]) -> None:
        """Continue from a saved state; sent: what devices of each size began with."""
        pairs = {name: value for name, value in state.below(PROJECT).items()}
        self.projections = {(n.partition(BETWEEN)[0], n.partition(BETWEEN)[2]): v for n, v in pairs.items()}
        self.held, self._brought = {}, {}
        for number, one in enumerate(state.record("held", list[HeldGroup])):
            change = state.below(f"{HELD}{number}/")
            part = DilatedUpdate(one.spec, change, sent[one.spec], one.samples)
            self.held[one.key] = TrainedGroup(part, one.members, one.links)


def linked_pairs(answers: Mapping[str, Mapping[int, Array]], share: float) -> dict[str, tuple[str, ...]]:
    """For each cluster those that answer most like it (Eq. 7): the given share of all pairs, at least one.

    answers: what a cluster says of each class of the server's examples [C]. Raw weights of different widths cannot be
    compared, nor is a divergence of them defined; a small divergence of answers means alike.
    """
    found = {
        (one, other): answer_divergence(answers[one], answers[other]) for one, other in combinations(sorted(answers), 2)
    }
    if not found:
        return {}
    limit = np.quantile(list(found.values()), share)
    pairs = [pair for pair, value in found.items() if value <= limit]
    return {key: tuple(_partners(key, pairs)) for key in answers if _partners(key, pairs)}


def _partners(key: str, pairs: Sequence[tuple[str, str]]) -> list[str]:
    return [other if one == key else one for one, other in pairs if key in (one, other)]
