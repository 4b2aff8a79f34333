"""How much memory a step needs, from the life of every value in execution order."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedwright.server_runtime.artifacts.autodiff.graph import Graph, Node, outer_names
from fedwright.server_runtime.artifacts.sizes import Sizes, sizes_at

BATCHES = (1, 256, 512)
_IN_PLACE = {"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"}


def estimate(graph: Graph, sizes: Mapping[int, Sizes], update: Graph | None = None) -> tuple[int, int]:
    """(fixed bytes, bytes per example) of one step, from the sizes of its values at each of BATCHES.

    Fixed: inputs and outputs that are state (held twice, read and written), frozen weights, constants. update: of a
    step in parts, whose state is held once (buffers twice). The peak of
    live values grows faster with larger batches, so the share of an example is taken between two large ones and the
    rest from a batch of one: that bounds every size between.
    """
    nodes, outputs = execution_order(graph), {value.name for value in graph.outputs}
    one, large, larger = (_peak(nodes, _measured(graph, sizes[batch]), outputs, batch) for batch in BATCHES)
    per_sample = (larger - large) // (BATCHES[2] - BATCHES[1])
    outputs_held, state = graph.outputs, graph.inputs
    if update is not None:
        state = list({value.name: value for value in [*graph.inputs, *update.inputs]}.values())
        once = {value.name for value in update.outputs}
        outputs_held = [value for value in graph.outputs if value.name not in once]
        one = max(one, per_sample + _peak(execution_order(update), sizes_at(update.to_model(), 1)[0], once, 1))
    held = sum(_bytes(v.shape, v.dtype, 1) for v in [*state, *outputs_held] if -1 not in v.shape)
    held += sum(_bytes(v.shape, v.dtype, 1) for v in graph.external.values())
    held += sum(array.nbytes for array in graph.initializers.values())
    return held + max(0, one - per_sample), per_sample


def _measured(graph: Graph, sizes: Sizes) -> Sizes:
    sizes = dict(sizes)
    for name in (name for node in graph.nodes for name in node.outputs):
        # measured shapes reach further than inferred ones
        if name and graph.knows(name):
            sizes[name] = graph.shape(name), sizes[name][1] if name in sizes else graph.dtype(name)
    return sizes


def _bytes(shape: tuple[int, ...], dtype: np.dtype[Any], batch: int) -> int:
    return math.prod(batch if dim == -1 else dim for dim in shape) * dtype.itemsize


def execution_order(graph: Graph) -> list[Node]:
    """The order in which onnxruntime runs the nodes: back from the last node that nobody reads, later inputs first."""
    made = {name: i for i, node in enumerate(graph.nodes) for name in node.outputs if name}
    sources = [sorted({made[n] for n in [*node.inputs, *outer_names(node)] if n in made}) for node in graph.nodes]
    read = {i for source in sources for i in source}
    stack = [(i, False) for i in range(len(graph.nodes)) if i not in read]
    seen: set[int] = set()
    order = []
    while stack:
        index, done = stack.pop()
        if done:
            order.append(graph.nodes[index])
        elif index not in seen:
            seen.add(index)
            stack.append((index, True))
            stack.extend((source, False) for source in sources[index] if source not in seen)
    return order


def _peak(nodes: Sequence[Node], sizes: Sizes, skip: set[str], batch: int) -> int:
    """Largest sum of live intermediate values; a reshaped value shares the memory of its source."""
    shared: dict[str, str] = {}
    last: dict[str, int] = {}
    for index, node in enumerate(nodes):
        if node.op in _IN_PLACE:
            shared[node.outputs[0]] = shared.get(node.inputs[0], node.inputs[0])
        for name in [*node.inputs, *outer_names(node)]:
            last[shared.get(name, name)] = index
    live: dict[str, int] = {}
    now = peak = 0
    for index, node in enumerate(nodes):
        for name in node.outputs:
            if name and name not in skip and name not in shared and name in sizes:
                live[name] = _bytes(*sizes[name], batch)
                now += live[name]
        peak = max(peak, now)
        for name in {shared.get(name, name) for name in [*node.inputs, *node.outputs]}:
            if last.get(name, index) == index and name in live:
                now -= live.pop(name)
    return peak
