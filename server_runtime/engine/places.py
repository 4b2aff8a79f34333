"""Where on a cluster workers sit: one for each CPU, with its share of a machine's GPUs where that has any."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedwright.protocol.errors import ConfigError, EngineError

# Parts of a GPU are counted in these by Ray.
GPU_GRAIN = 10_000


@dataclass(frozen=True)
class Place:
    """One worker's: the node, and how much of a GPU it has there."""

    node: str
    gpus: float = 0.0


def worker_places(nodes: Sequence[Mapping[str, Any]], asked: int | None) -> list[Place]:
    """For so many workers, or for all CPUs; those with a GPU first, then in turn over the machines.

    nodes: as Ray lists them. ConfigError for more than there are CPUs.
    """
    rows = [_places_of(node) for node in nodes if node["Alive"]]
    rows.sort(key=lambda row: (-row[0].gpus, row[0].node) if row else (0.0, ""))
    turns = itertools.zip_longest(*rows)
    listed = sorted((place for turn in turns for place in turn if place is not None), key=lambda place: not place.gpus)
    if not listed:
        raise EngineError("the Ray cluster has no CPUs; start its machines with some")
    if asked is not None and asked > len(listed):
        raise ConfigError(
            f"engine.workers is {asked} but the Ray cluster has {len(listed)} CPUs; take fewer or add machines"
        )
    return listed[:asked]


def _places_of(node: Mapping[str, Any]) -> list[Place]:
    """One for each CPU of a machine; its GPUs are shared, a worker has one at most."""
    cpus, gpus = int(node["Resources"].get("CPU", 0)), float(node["Resources"].get("GPU", 0))
    share = min(1.0, math.floor(GPU_GRAIN * gpus / max(1, cpus)) / GPU_GRAIN)
    return [Place(str(node["NodeID"]), share)] * cpus
