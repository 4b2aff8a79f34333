"""Who hides whose part: each member of a sum shares masks with k others, on a ring in an order that nobody chose.

The ring and its chords are the same for all who know the roster: members in the order of H(roster, name), each with
the k/2 before and after it. With few members everybody is everybody's neighbour.

Fewer neighbours would let a server stand around a device by chance, and a threshold below two thirds let it have two
lists of members signed.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence

# In sums of more devices each has so many neighbours, or more where a run asks for it.
NEIGHBOURS = 32
# The share of neighbours, and of members, without whom nothing is opened; a run may ask for more, up to the second.
THRESHOLD, MOST_THRESHOLD = 2 / 3, 0.9
# With two, each learns the other's part from the sum.
LEAST_DEVICES = 3

Graph = Mapping[str, frozenset[str]]
"""The neighbours of every member."""


def neighbours_of(devices: Sequence[str], digest: bytes, *, count: int = NEIGHBOURS) -> dict[str, frozenset[str]]:
    """The graph of a roster; digest: of the whole roster, with everybody's keys."""
    ring = ring_of(devices, digest)
    return {device: near(ring, place, count) for place, device in enumerate(ring)}


def ring_of(devices: Sequence[str], digest: bytes) -> list[str]:
    """The members in their order."""
    return sorted(devices, key=lambda device: hashlib.sha256(digest + device.encode()).digest())


def near(ring: Sequence[str], place: int, count: int) -> frozenset[str]:
    """So many others, or one more, who are nearest to a place, as many on both sides; all where there are no more."""
    size, half = len(ring), (count + 1) // 2
    if size <= 2 * half + 1:
        return frozenset(ring) - {ring[place]}
    return frozenset(ring[(place + step) % size] for step in range(-half, half + 1) if step)


def looked_at(
    devices: Sequence[str], digest: bytes, device: str, least: int, *, count: int = NEIGHBOURS
) -> frozenset[str]:
    """Whose word a device checks by itself: its neighbours', and of as many more as a sum takes."""
    ring = ring_of(devices, digest)
    return near(ring, ring.index(device), max(count, least - 1))


def quorum(devices: int, share: float = THRESHOLD) -> int:
    """How many of a roster must stay to the end: of any two such sets more than a third is in both."""
    # Whatever the share is rounded to, two thirds are passed.
    return max(2 * devices // 3, int(share * devices)) + 1


def threshold(neighbours: int, share: float = THRESHOLD) -> int:
    """How many neighbours' shares give a secret back."""
    return quorum(neighbours, share)


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
