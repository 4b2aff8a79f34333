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
    order = sorted(devices, key=lambda device: hashlib.sha256(digest + device.encode()).digest())
    count = len(order)
    half = NEIGHBOURS // 2
    if count <= NEIGHBOURS + 1:
        return {device: frozenset(order) - {device} for device in order}
    found = {}
    for place, device in enumerate(order):
        steps = [step for step in range(-half, half + 1) if step]
        found[device] = frozenset(order[(place + step) % count] for step in steps)
    return found


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
