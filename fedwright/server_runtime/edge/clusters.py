"""Pools split into clusters of like devices, and the exchange between clusters of different size, as an edge does it.

Devices are clustered by their last layers in the first round that they answer in, and again when a new one is among
them. Each cluster's mean goes up by itself. For the exchange a device sends the class means of what enters its last
layer with its update, once per round; they end here, the host never sees them.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec
import numpy as np

from fedwright.protocol import deltas, tensors
from fedwright.protocol.artifact import Manifest
from fedwright.protocol.errors import ConfigError
from fedwright.protocol.messages import Part, Task, Update
from fedwright.server_runtime.blocks.clustering import cluster
from fedwright.server_runtime.blocks.exchange import Features, Head, Options, Projections, exchange, link
from fedwright.server_runtime.edge.pooling import COUNTS, PROTOTYPES, Member, Reader, mean, pack
from fedwright.server_runtime.methods.base import Array, Tensors

log = logging.getLogger(__name__)

CLUSTERS, PROJECTIONS = "clusters", "projections"
SEED = 1
BETWEEN = "\n"


class Notes(Protocol):
    """What an edge keeps besides tasks; its store does."""

    def note(self, name: str) -> bytes | None:
        """Something kept under a name."""
        ...

    def save_note(self, name: str, value: bytes) -> None:
        """Keep something under a name."""
        ...


@dataclass(frozen=True)
class Wanted:
    """How an edge groups: at most (or exactly) so many clusters per size, and whether they teach each other."""

    most: int = 1
    exact: int | None = None
    exchange: Options | None = None

    def reasons(self) -> list[str]:
        """The settings of an edge that work on last layers."""
        found = [f"cluster.most = {self.most}"] if self.most > 1 else []
        found += [] if self.exact is None else [f"cluster.exact = {self.exact}"]
        return found + ([] if self.exchange is None else [f"exchange.form = {self.exchange.form!r}"])


@dataclass
class _Cluster:
    """Like devices of one pool: their parts, the weights they started from and the mean of their changes."""

    name: str
    task: Task
    parts: list[Part]
    base: Tensors
    values: Tensors
    layer: tuple[str, str | None]

    def head(self) -> Head:
        """The last layer after the mean change."""
        weight, bias = self.layer
        moved = {name: self.base[name] + self.values[name] for name in self.layer if name is not None}
        none = np.zeros(len(moved[weight]))
        return Head(moved[weight].astype(np.float64), none if bias is None else moved[bias].astype(np.float64))

    def take_head(self, head: Head) -> None:
        """Change the mean so that it ends at this last layer."""
        weight, bias = self.layer
        for name, value in ((weight, head.weight), (bias, head.bias)):
            if name is not None:
                self.values[name] = (value - self.base[name]).astype(self.values[name].dtype)


class Clustered:
    """See Grouping: one mean for each cluster, after an exchange if that is wanted."""

    def __init__(self, wanted: Wanted, notes: Notes) -> None:
        self.together = wanted.exchange is not None
        self._wanted = wanted
        self._notes = notes
        self._known: dict[str, tuple[str, int]] = _read_clusters(notes)
        self._warned = False

    def group(self, pools: dict[str, list[Member]], reader: Reader) -> list[Update]:
        """See Grouping."""
        found = [one for _, members in sorted(pools.items()) for one in self._clusters(members, reader)]
        if self._wanted.exchange is not None:
            self._exchange(found, self._wanted.exchange)
        return [pack(one.task, one.parts, one.values, reader.blobs) for one in found]

    def _clusters(self, members: Sequence[Member], reader: Reader) -> list[_Cluster]:
        ordered = sorted(members, key=lambda member: member.device)
        task = ordered[0].task
        layer = last_layer(reader.manifest(task), self._wanted)
        base = deltas.load(reader.blobs.path(task.weights.sha256))[0]
        labels = self._labels(ordered, base[layer[0]], layer[0], reader)
        groups = [
            [member for member in ordered if labels[member.device] == one] for one in sorted(set(labels.values()))
        ]
        return [
            _Cluster(
                group[0].device,
                group[0].task,
                [Part(member.task.task, member.update.stats) for member in group],
                base,
                mean(group, reader),
                layer,
            )
            for group in groups
        ]

    def _labels(self, members: Sequence[Member], base: Array, name: str, reader: Reader) -> dict[str, int]:
        """The cluster of each device; kept from the first time that these devices were seen at this size."""
        size = members[0].task.artifact.sha256
        devices = [member.device for member in members]
        if all(self._known.get(device, ("", 0))[0] == size for device in devices):
            return {device: self._known[device][1] for device in devices}
        wanted = self._wanted
        if wanted.exact is not None and wanted.exact > len(devices):
            log.warning("%d clusters are wanted but %d devices answered; each is one", wanted.exact, len(devices))
        layers = {member.device: base + reader.read(member.task, member.update)[name] for member in members}
        exact = None if wanted.exact is None else min(wanted.exact, len(devices))
        labels = cluster(layers, seed=SEED, most=wanted.most, exact=exact)
        self._known.update({device: (size, label) for device, label in labels.items()})
        self._notes.save_note(CLUSTERS, msgspec.msgpack.encode(self._known))
        return labels

    def _exchange(self, clusters: Sequence[_Cluster], options: Options) -> None:
        """Let linked clusters teach each other; those whose devices sent no class means are left as they are."""
        able = {one.name: one for one in clusters if PROTOTYPES in one.values}
        if len(able) < len(clusters):
            log.warning("devices sent no class means, so nothing is exchanged; set update.features in the run's config")
        heads = {name: one.head() for name, one in able.items()}
        self._warn_of_one_width(heads)
        features = {
            name: Features.of_prototypes(one.values[PROTOTYPES], one.values[COUNTS]) for name, one in able.items()
        }
        pairs = link(heads, features, quantile=options.quantile)
        number = clusters[0].task.round
        before = self._projections(number)
        usable = {(j, i): p for (j, i), p in before.items() if _fits(p, heads.get(j), heads.get(i))}
        after, kept = exchange(heads, features, pairs, options=options, kept=usable)
        for name, head in after.items():
            if head is not heads[name]:
                able[name].take_head(head)
        if kept:
            self._notes.save_note(PROJECTIONS, msgspec.msgpack.encode((number, _packed(before), _packed(kept))))

    def _warn_of_one_width(self, heads: dict[str, Head]) -> None:
        """Only clusters of different size are linked."""
        widths = {head.weight.shape[1] for head in heads.values()}
        if len(widths) == 1 and not self._warned:
            self._warned = True
            log.warning(
                "all last layers of this edge's devices have %d inputs, so nothing is exchanged; give this edge "
                "devices of other widths, or set exchange.form to 'off'",
                *widths,
            )

    def _projections(self, number: int) -> Projections:
        """The projections as they were before a round: it may be done again when the edge was killed in it."""
        note = self._notes.note(PROJECTIONS)
        if note is None:
            return {}
        last, before, after = msgspec.msgpack.decode(note, type=tuple[int, bytes, bytes])
        found = tensors.load(before if last == number else after)
        return {(name.split(BETWEEN)[0], name.split(BETWEEN)[1]): value for name, value in found.items()}


def _fits(projection: Array, source: Head | None, target: Head | None) -> bool:
    if source is None or target is None:
        return False
    return projection.shape == (len(target.bias), source.weight.shape[1])


def _packed(projections: Projections) -> bytes:
    return tensors.save({BETWEEN.join(pair): value for pair, value in projections.items()})


def last_layer(manifest: Manifest, wanted: Wanted) -> tuple[str, str | None]:
    """The names of the last layer's weight and bias: the last matrix with one row per class; wanted: what needs it."""
    shapes = {slot.name: tuple(slot.shape) for slot in manifest.slots if slot.role == "trainable"}
    matrices = [name for name, shape in shapes.items() if len(shape) == 2 and shape[0] == manifest.classes]
    if not matrices:
        reasons = wanted.reasons()
        need, them = ("needs", "that") if len(reasons) == 1 else ("need", "them")
        raise ConfigError(
            f"the model ends in no linear layer with one row per class, which {' and '.join(reasons)} {need}; "
            f"leave {them} out of the edge's config"
        )
    bias = matrices[-1].rpartition(".")[0] + ".bias"
    return matrices[-1], bias if bias in shapes else None


def _read_clusters(notes: Notes) -> dict[str, tuple[str, int]]:
    note = notes.note(CLUSTERS)
    return {} if note is None else msgspec.msgpack.decode(note, type=dict[str, tuple[str, int]])
