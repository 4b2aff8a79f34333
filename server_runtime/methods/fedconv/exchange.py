"""Ratios that teach each other's last layers where no edge server does it (FedConv's cross-cluster exchange)."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from fedwright.protocol.artifact import BY_CLASS, CLASS_COUNTS, CLASS_MEANS
from fedwright.server_runtime.blocks.fedconv.cluster_exchange import ClassMeans, ExchangeOptions, Head, exchange
from fedwright.server_runtime.methods.base import Array, Tensors
from fedwright.server_runtime.methods.fedconv.server_training import DilatedUpdate


class ClassMeanSums:
    """Means of what enters the last layer, by class, over the devices of each part."""

    def __init__(self) -> None:
        self._sums: dict[str, Array] = {}
        self._counts: dict[str, Array] = {}

    def take(self, key: str, tensors: Tensors) -> Tensors:
        """Fold in a device's class means; returns the other tensors."""
        rest = {name: value for name, value in tensors.items() if name not in BY_CLASS}
        if CLASS_MEANS in tensors:
            counts = tensors[CLASS_COUNTS].astype(np.float64)
            sums = tensors[CLASS_MEANS].astype(np.float64) * counts[:, None]
            self._sums[key] = self._sums.get(key, 0) + sums
            self._counts[key] = self._counts.get(key, 0) + counts
        return rest

    def class_means(self, key: str) -> ClassMeans:
        """All class means of one part."""
        counts = self._counts[key]
        return ClassMeans.of(self._sums[key] / np.maximum(counts, 1)[:, None], counts)

    def known(self) -> set[str]:
        """Parts whose devices sent class means."""
        return set(self._sums)


def exchanged(parts: Mapping[str, DilatedUpdate], means: ClassMeanSums, head: list[str]) -> dict[str, DilatedUpdate]:
    """The parts after ratios that answer alike have taught each other; `head` names the last layer's tensors."""
    weight, bias = sorted(head, key=lambda name: name.endswith("bias"))[:2]
    able = {key: part for key, part in parts.items() if key in means.known()}
    heads = {
        key: Head(*((part.sent[name] + part.change[name]).astype(np.float64) for name in (weight, bias)))
        for key, part in able.items()
    }
    by_part = {key: means.class_means(key) for key in able}
    after, _ = exchange(heads, by_part, options=ExchangeOptions())
    found = dict(parts)
    for key, taught in after.items():
        part = parts[key]
        moved = {
            weight: (taught.weight - part.sent[weight]).astype(np.float32),
            bias: (taught.bias - part.sent[bias]).astype(np.float32),
        }
        found[key] = replace(part, change={**part.change, **moved})
    return found
