"""Who hides whose part: each member of a sum shares masks with k others, on a ring in an order that nobody chose.

The ring and its chords are the same for all who know the roster: members in the order of H(roster, name), each with
the k/2 before and after it. With few members everybody is everybody's neighbour.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence

# In sums of more devices each has so many neighbours.
NEIGHBOURS = 32
# With two, each learns the other's part from the sum.
LEAST_DEVICES = 3

Graph = Mapping[str, frozenset[str]]
"""The neighbours of every member."""


def neighbours_of(devices: Sequence[str], digest: bytes) -> dict[str, frozenset[str]]:
    """The graph of a roster; digest: of the whole roster, with everybody's keys."""
    ring = ring_of(devices, digest)
    return {device: near(ring, place, NEIGHBOURS) for place, device in enumerate(ring)}


def ring_of(devices: Sequence[str], digest: bytes) -> list[str]:
    """The members in their order."""
    return sorted(devices, key=lambda device: hashlib.sha256(digest + device.encode()).digest())


def near(ring: Sequence[str], place: int, count: int) -> frozenset[str]:
    """So many others, or one more, who are nearest to a place, as many on both sides; all where there are no more."""
    size, half = len(ring), (count + 1) // 2
    if size <= 2 * half + 1:
        return frozenset(ring) - {ring[place]}
    return frozenset(ring[(place + step) % size] for step in range(-half, half + 1) if step)


def looked_at(devices: Sequence[str], digest: bytes, device: str, least: int) -> frozenset[str]:
    """Whose word a device checks by itself: its neighbours', and of as many more as a sum takes."""
    ring = ring_of(devices, digest)
    return near(ring, ring.index(device), max(NEIGHBOURS, least - 1))


def quorum(devices: int) -> int:
    """How many of a roster must stay to the end: of any two such sets more than a third is in both."""
    return 2 * devices // 3 + 1


def threshold(neighbours: int) -> int:
    """How many neighbours' shares give a secret back."""
    return 2 * neighbours // 3 + 1


def is_connected(graph: Graph, members: Iterable[str]) -> bool:
    """Whether masks tie all of these members together; else parts of the sum could be told apart."""
    wanted = set(members)
    if not wanted:
        return False
    reached, edge = set[str](), {min(wanted)}
    while edge:
        reached |= edge
        edge = {other for device in edge for other in graph[device]} & wanted - reached
    return reached == wanted
