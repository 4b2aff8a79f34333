"""One graph as a device's data: `graph:file.npz` with nodes x, their classes y, and edges between them.

A held-out node is predicted inside the whole graph; training sees only edges between nodes that it trains on.
"""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedwright.device_runtime.data import tables
from fedwright.device_runtime.data.local import Array, Raw
from fedwright.protocol.artifact import EDGES
from fedwright.protocol.errors import DataError

Index = NDArray[np.int64]
HOLDOUT = "holdout"
# Before .npz, where a folder has one file per device and nobody can say what each is.
SUFFIX = ".graph.npz"


def read_graph(place: str, options: dict[str, str]) -> Raw:
    """A numpy archive with x, y, edges [m, 2], and optionally classes and holdout, the numbers of held-out nodes."""
    arrays, held = tables.arrays_of(place, ("x", "y", "classes", EDGES, HOLDOUT))
    raw = tables.from_mapping(arrays, where=place, held=held)
    if EDGES not in arrays:
        raise DataError(f"{place}: has no {EDGES!r}; name pairs of node numbers so, or use npz:")
    edges = undirected(arrays[EDGES], nodes=len(raw.x), where=place)
    holdout = _nodes(arrays[HOLDOUT], nodes=len(raw.x), where=place) if HOLDOUT in arrays else None
    return replace(raw, edges=edges, holdout=holdout)


def undirected(edges: Array, *, nodes: int, where: str) -> Index:
    """Every edge once, [m, 2]; loops are left out because a layer adds each node to its neighbours itself."""
    if edges.ndim != 2 or edges.shape[1:] != (2,) or edges.dtype.kind not in "iu":
        raise DataError(f"{where}: edges have shape {list(edges.shape)} and type {edges.dtype}; make them [m, 2] whole")
    whole = edges.astype(np.int64)
    _check_numbers(whole, nodes, f"{where}: edges")
    ordered = np.sort(whole, axis=1)
    kept: Index = np.unique(ordered[ordered[:, 0] != ordered[:, 1]], axis=0)
    return kept


def inner_edges(edges: Index, nodes: Index) -> Index:
    """Edges with both ends among these nodes, renumbered by their places in `nodes`; edges that lead out are lost."""
    place = np.full(int(max(edges.max(initial=-1), nodes.max(initial=-1))) + 1, -1, np.int64)
    place[nodes] = np.arange(len(nodes))
    moved = place[edges]
    return moved[(moved >= 0).all(axis=1)]


def side_by_side(graphs: Iterable[tuple[Index | None, int]]) -> Index | None:
    """The edges of several graphs, each with its number of nodes, numbered one after the other; None without any."""
    moved, at, found = [np.empty((0, 2), np.int64)], 0, False
    for edges, nodes in graphs:
        if edges is not None:
            found = True
            moved.append(edges + at)
        at += nodes
    return np.concatenate(moved) if found else None


def _nodes(numbers: Array, *, nodes: int, where: str) -> Index:
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
        raise DataError(f"{where}: {HOLDOUT} must be a list of node numbers, not {numbers.dtype} {list(numbers.shape)}")
    whole = np.unique(numbers.astype(np.int64))
    _check_numbers(whole, nodes, f"{where}: {HOLDOUT}")
    if len(whole) == nodes:
        raise DataError(f"{where}: all {nodes} nodes are held out; leave some to train on")
    return whole


def _check_numbers(numbers: Index, nodes: int, where: str) -> None:
    wrong = numbers[(numbers < 0) | (numbers >= nodes)]
    if wrong.size:
        raise DataError(f"{where} name node {wrong[0]}, but there are {nodes}; number them from 0 on")
