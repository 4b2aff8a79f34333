"""Pools split into clusters of like devices, and the exchange between clusters of different size, as an edge does it.

Devices are clustered by their last layers in the first round that they answer in, and again when a new one is among
them. Each cluster's mean goes up by itself. For the exchange a device sends the class means of what enters its last
layer with its update, once per round; the host never sees them. Other edges see the last layers of the clusters and
what these answer (`cluster_views.py`), and class means only for eq8, which is made of them.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from fedwright.protocol import deltas, tensors
from fedwright.protocol.artifact import CLASS_COUNTS, CLASS_MEANS, Manifest
from fedwright.protocol.errors import BadBlob, ConfigError
from fedwright.protocol.messages import Part, Task, Update
from fedwright.server_runtime.blocks.fedconv.cluster_exchange import (
    ClassMeans,
    ClusterView,
    ExchangeOptions,
    Head,
    Projections,
    exchange,
)
from fedwright.server_runtime.blocks.fedconv.clustering import cluster, named_clusters
from fedwright.server_runtime.edge.cluster_sharing import Notes
from fedwright.server_runtime.edge.cluster_views import BETWEEN, pack_views, unpack_views
from fedwright.server_runtime.edge.pooled_update import PooledReply, Reader, mean, pack, put_together
from fedwright.server_runtime.methods.base import Array, Tensors

log = logging.getLogger(__name__)

CLUSTERS, PROJECTIONS = "clusters", "projections"
SEED = 1


@dataclass(frozen=True)
class ExchangeNeeds:
    """How an edge groups: at most (or exactly) so many clusters per size, and whether they teach each other."""

    most: int = 1
    exact: int | None = None
    exchange: ExchangeOptions | None = None

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
    label: str

    def head(self) -> Head:
        """The last layer after the mean change."""
        weight, bias = self.layer
        moved = {name: self.base[name] + self.values[name] for name in self.layer if name is not None}
        none = np.zeros(len(moved[weight]))
        return Head(moved[weight].astype(np.float64), none if bias is None else moved[bias].astype(np.float64))

    def class_means(self) -> ClassMeans:
        """What enters the last layer: class means over all its devices."""
        return ClassMeans.of(self.values[CLASS_MEANS], self.values[CLASS_COUNTS])

    def take_head(self, head: Head) -> None:
        """Change the mean so that it ends at this last layer."""
        weight, bias = self.layer
        for name, value in ((weight, head.weight), (bias, head.bias)):
            if name is not None:
                self.values[name] = (value - self.base[name]).astype(self.values[name].dtype)


class _Projected(msgspec.Struct, frozen=True, array_like=True):
    """Projections before and after the last round of a run that had an exchange."""

    round: int
    before: bytes
    after: bytes
    run: str = ""


class Clustered:
    """See Grouping: one mean for each cluster, after an exchange if that is wanted."""

    def __init__(self, wanted: ExchangeNeeds, notes: Notes) -> None:
        self.together = wanted.exchange is not None
        self.labels = True
        self._wanted = wanted
        self._notes = notes
        self._known: dict[str, tuple[str, str]] = _read_clusters(notes)
        self._warned: set[str] = set()
        self._last: tuple[set[str], list[_Cluster]] | None = None

    def show(self, pools: dict[str, list[PooledReply]], reader: Reader) -> bytes | None:
        """See Grouping."""
        options = self._wanted.exchange
        if options is None:
            return None
        able = _able(self._made(pools, reader))
        return pack_views(
            {name: ClusterView.of(one.head(), one.class_means(), options.form) for name, one in able.items()}
        )

    def group(
        self, pools: dict[str, list[PooledReply]], reader: Reader, elsewhere: Mapping[str, bytes]
    ) -> list[Update]:
        """See Grouping."""
        found = self._made(pools, reader)
        # What is changed below is not to be used again.
        self._last = None
        if found and self._wanted.exchange is not None:
            self._exchange(found, self._wanted.exchange, elsewhere)
        clusters = [pack(one.task, one.parts, one.values, reader.blobs, cluster=one.label) for one in found]
        return clusters + [put_together(members, reader) for members in pools.values() if _is_whole(members)]

    def _made(self, pools: dict[str, list[PooledReply]], reader: Reader) -> list[_Cluster]:
        """The clusters of all pools; kept from when they were shown until they go up."""
        tasks = {member.task.task for members in pools.values() for member in members}
        if self._last is None or self._last[0] != tasks:
            # Not by key, which is of one run: two runs of one config do the same sums in the same order.
            split = [members for members in pools.values() if not _is_whole(members)]
            ordered = sorted(split, key=lambda members: min(member.device for member in members))
            made = [one for members in ordered for one in self._clusters(members, reader)]
            self._last = (tasks, made)
        return self._last[1]

    def _clusters(self, members: Sequence[PooledReply], reader: Reader) -> list[_Cluster]:
        ordered = sorted(members, key=lambda member: member.device)
        task = ordered[0].task
        layer = last_layer(reader.manifest(task), self._wanted, personal=task.returns.personal)
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
                labels[group[0].device],
            )
            for group in groups
        ]

    def _labels(self, members: Sequence[PooledReply], base: Array, name: str, reader: Reader) -> dict[str, str]:
        """The cluster of each device; kept from the first time that a run had these devices at this size.

        Clusters are called after the first of their devices, which no other edge has.
        """
        task = members[0].task
        size = task.artifact.sha256 if task.run_identity is None else f"{task.run_identity}/{task.artifact.sha256}"
        devices = [member.device for member in members]
        if all(self._known.get(device, ("", ""))[0] == size for device in devices):
            return {device: self._known[device][1] for device in devices}
        wanted = self._wanted
        if wanted.exact is not None and wanted.exact > len(devices):
            log.warning("%d clusters are wanted but %d devices answered; each is one", wanted.exact, len(devices))
        layers = {member.device: base + reader.read(member.task, member.update)[name] for member in members}
        exact = None if wanted.exact is None else min(wanted.exact, len(devices))
        labels = named_clusters(cluster(layers, seed=SEED, most=wanted.most, exact=exact))
        self._known.update({device: (size, label) for device, label in labels.items()})
        self._notes.save_note(CLUSTERS, msgspec.msgpack.encode(self._known))
        return labels

    def _exchange(self, clusters: Sequence[_Cluster], options: ExchangeOptions, elsewhere: Mapping[str, bytes]) -> None:
        """Let linked clusters teach each other; those whose devices sent no class means are left as they are."""
        able = _able(clusters)
        if len(able) < len(clusters):
            log.warning(
                "devices sent no class means, so nothing is exchanged; set update.class_means in the run's config"
            )
        heads = {name: one.head() for name, one in able.items()}
        means = {name: one.class_means() for name, one in able.items()}
        views = self._views(heads, elsewhere)
        shapes = {name: view.weight.shape for name, view in views.items()}
        shapes |= {name: head.weight.shape for name, head in heads.items()}
        self._warn_of_one_width({shape[1] for shape in shapes.values()})
        task = clusters[0].task
        before = self._projections(task)
        usable = {(j, i): p for (j, i), p in before.items() if _fits(p, shapes.get(j), shapes.get(i))}
        after, kept = exchange(heads, means, options=options, elsewhere=views, kept=usable)
        for name, head in after.items():
            if head is not heads[name]:
                able[name].take_head(head)
        if kept:
            note = _Projected(task.round, _packed(before), _packed(kept), task.run_identity or "")
            self._notes.save_note(PROJECTIONS, msgspec.msgpack.encode(note))

    def _views(self, heads: Mapping[str, Head], elsewhere: Mapping[str, bytes]) -> dict[str, ClusterView]:
        """The clusters of other edges; those that cannot be read, or that are here by now, are left out."""
        classes = max((len(head.bias) for head in heads.values()), default=0)
        views: dict[str, ClusterView] = {}
        for edge, data in elsewhere.items():
            try:
                views |= unpack_views(data, classes=classes)
            except BadBlob as err:
                self._warn_once(f"clusters of edge {edge} are not linked: {err}")
        return {name: view for name, view in views.items() if name not in heads}

    def _warn_of_one_width(self, widths: set[int]) -> None:
        """Only clusters of different size are linked."""
        if len(widths) == 1:
            self._warn_once(
                f"all last layers of this round have {widths.pop()} inputs, so nothing is exchanged; give the run "
                "devices of other widths, or set exchange.form to 'off'"
            )

    def _warn_once(self, warning: str) -> None:
        if warning not in self._warned:
            self._warned.add(warning)
            log.warning(warning)

    def _projections(self, task: Task) -> Projections:
        """The projections as they were before a round: it may be done again when the edge was killed in it."""
        data = self._notes.note(PROJECTIONS)
        note = None if data is None else msgspec.msgpack.decode(data, type=_Projected)
        if note is None or note.run != (task.run_identity or ""):
            return {}
        found = tensors.load(note.before if note.round == task.round else note.after)
        return {(name.split(BETWEEN)[0], name.split(BETWEEN)[1]): value for name, value in found.items()}


def _able(clusters: Sequence[_Cluster]) -> dict[str, _Cluster]:
    """Those whose devices sent class means."""
    return {one.name: one for one in clusters if CLASS_MEANS in one.values}


def _fits(projection: Array, source: tuple[int, ...] | None, target: tuple[int, ...] | None) -> bool:
    """Whether a projection leads from the features of one last layer to the classes of another; shapes [C, d]."""
    return source is not None and target is not None and projection.shape == (target[0], source[1])


def _packed(projections: Projections) -> bytes:
    return tensors.save({BETWEEN.join(pair): value for pair, value in projections.items()})


def last_layer(manifest: Manifest, wanted: ExchangeNeeds, *, personal: Sequence[str] = ()) -> tuple[str, str | None]:
    """The names of the last layer's weight and bias: the last matrix with one row per class.

    wanted: what needs it. personal: tensors that devices keep to themselves.
    """
    trained = [slot for slot in manifest.slots if slot.role == "trainable" and slot.name not in personal]
    shapes = {slot.name: tuple(slot.shape) for slot in trained}
    matrices = [name for name, shape in shapes.items() if len(shape) == 2 and shape[0] == manifest.classes]
    if not matrices:
        reasons = wanted.reasons()
        need, them = ("needs", "that") if len(reasons) == 1 else ("need", "them")
        raise ConfigError(
            f"devices send no last linear layer with one row per class, which {' and '.join(reasons)} {need}; "
            f"leave {them} out of the edge's config"
        )
    bias = matrices[-1].rpartition(".")[0] + ".bias"
    return matrices[-1], bias if bias in shapes else None


def _is_whole(members: Sequence[PooledReply]) -> bool:
    pool = members[0].task.pool
    return pool is not None and pool.whole


def _read_clusters(notes: Notes) -> dict[str, tuple[str, str]]:
    note = notes.note(CLUSTERS)
    known = {} if note is None else msgspec.msgpack.decode(note, type=dict[str, tuple[str, str | int]])
    # An edge of an earlier release numbered its clusters; they are made anew.
    return {device: (size, label) for device, (size, label) in known.items() if isinstance(label, str)}
