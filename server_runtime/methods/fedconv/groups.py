"""Which devices FedConv averages before it dilates: each by itself, like ones of a ratio, or all of a ratio.

Clusters come from the edges, which name them; devices of a ratio that come without an edge's word are put into clusters
here, by their last layers, when they are first seen and again when a new one is among them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from fedwright.server_runtime import zoo
from fedwright.server_runtime.blocks.fedconv.clustering import cluster, named_clusters
from fedwright.server_runtime.methods.base import Array, CheckedUpdate, Tensors
from fedwright.server_runtime.methods.fedconv.params import GroupBy
from fedwright.server_runtime.spec import ModelSpec


class PendingUpdate:
    """The mean change of one device, or of several of one ratio."""

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self.samples = 0.0
        self.members: list[str] = []
        self._total: dict[str, Array] = {}

    def add(self, change: Tensors, samples: float, devices: tuple[str, ...] = ()) -> None:
        """Fold in a change."""
        self.samples += samples
        self.members += devices
        for name, value in change.items():
            part = samples * value.astype(np.float64)
            self._total[name] = self._total[name] + part if name in self._total else part

    def mean(self) -> Tensors:
        """Σ n Δ / Σ n."""
        return {name: (value / self.samples).astype(np.float32) for name, value in self._total.items()}


@dataclass(frozen=True)
class _Single:
    """An update that no edge has put into a cluster."""

    device: str
    update: CheckedUpdate

    @property
    def samples(self) -> float:
        return self.update.weight * self.update.stats.samples

    @property
    def devices(self) -> tuple[str, ...]:
        return self.update.devices or (self.device,)


@dataclass
class Groups:
    """Takes the updates of a round and says who is averaged with whom.

    most: clusters of a ratio that are made here, at most. head: the last layer's weight, by which they are made. known:
    the ratio and the cluster of each device that was in one made here.
    """

    by: GroupBy
    most: int
    head: str
    seed: int
    known: dict[str, tuple[str, str]] = field(default_factory=dict)
    _named: dict[str, PendingUpdate] = field(default_factory=dict)
    _singles: dict[str, list[_Single]] = field(default_factory=dict)

    def add(self, device: str, update: CheckedUpdate) -> None:
        """Take in an update."""
        spec, one = update.assignment.structure.spec, _Single(device, update)
        ratio = ratio_name(spec)
        if self.by == "cluster" and update.cluster:
            self._put(f"{ratio}/{update.cluster}", spec, one)
        elif self.by == "cluster" and self.most > 1:
            self._singles.setdefault(ratio, []).append(one)
        else:
            self._put(device if self.by == "device" else ratio, spec, one)

    def close(self, start: Mapping[ModelSpec, Tensors]) -> dict[str, PendingUpdate]:
        """The groups of the round, and nothing of it left here; start: what devices of each size began with."""
        for ratio, singles in sorted(self._singles.items()):
            spec = singles[0].update.assignment.structure.spec
            labels = self._labels(ratio, singles, start[spec][self.head])
            for one in singles:
                self._put(f"{ratio}/{labels[one.device]}", spec, one)
        found, self._named, self._singles = self._named, {}, {}
        return found

    def specs(self) -> set[ModelSpec]:
        """The sizes of what came."""
        singles = (one.update.assignment.structure.spec for found in self._singles.values() for one in found)
        return {*singles, *(own.spec for own in self._named.values())}

    def forget(self) -> None:
        """Drop what came since the last round was closed."""
        self._named, self._singles = {}, {}

    def _put(self, key: str, spec: ModelSpec, one: _Single) -> None:
        self._named.setdefault(key, PendingUpdate(spec)).add(one.update.tensors, one.samples, one.devices)

    def _labels(self, ratio: str, singles: list[_Single], start: Array) -> dict[str, str]:
        """The cluster of each device."""
        devices = [one.device for one in singles]
        if not all(self.known.get(device, ("", ""))[0] == ratio for device in devices):
            layers = {one.device: start + one.update.tensors[self.head] for one in singles}
            made = named_clusters(cluster(layers, seed=self.seed, most=self.most))
            self.known |= {device: (ratio, label) for device, label in made.items()}
        return {device: self.known[device][1] for device in devices}


def ratio_name(spec: ModelSpec) -> str:
    """What devices of one size have in common."""
    return f"width-{zoo.width_of(spec):.4f}"
