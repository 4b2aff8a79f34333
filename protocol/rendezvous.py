"""Spreads devices over edges of one config without anybody keeping a list: by highest random weight (rendezvous).

Every device has an order of its own over all edges, and goes to the first that answers. When one of n edges is lost,
its devices go to all others alike, and nobody else moves.
"""

import hashlib

MOST_SHARDS = 10_000


def shard_names(name: str, shards: int) -> list[str]:
    """What the edges of one config are called."""
    return [f"{name}-{number}" for number in range(shards)]


def preferred(edges: list[str], device: str) -> list[str]:
    """The edges in the order in which this device goes to them."""
    return sorted(edges, key=lambda edge: hashlib.sha256(f"{edge}\0{device}".encode()).digest())
