"""Convolutions of a checked graph in the blocked layout (NCHWc) of this processor, where that is faster.

onnxruntime has direct kernels for images whose channels lie in blocks of 8 or 16 values, but uses them for constant
weights only. Here the weights train, so their reordering stands in the graph: `ReorderInput` makes [N, C/b, H, W, b] of
[N, C, H, W], and what a blocked convolution wants of its weights [O, I, k, k] is the same done twice,

    depthwise   [1, C, k, k]           -> [C/b, k, k, b]
    dense       [O, I, k, k]           -> [O, I/b, k, k, b], read as [1, O, I/b k k b, 1] -> [O/b, I/b, k, k, b, b]

The graph itself travels in plain operators and is checked as such; these nodes are put in by the device alone.
"""

import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import onnxruntime as ort

from fedwright.device_runtime.train.base import Array
from fedwright.device_runtime.train.native import RUNTIME_ERRORS
from fedwright.protocol import onnx_write as write
from fedwright.protocol.dataflow.shapes import ints, whole
from fedwright.protocol.errors import BadArtifact
from fedwright.protocol.onnx_outline import Node, Outline, scan
from fedwright.protocol.onnx_wire import fields

DOMAIN = "com.microsoft.nchwc"
_VERSION, _OPSET = 1, 17
# Sums of a few hundred products of numbers around one.
_CLOSE = 1e-3
# Field numbers of onnx.proto.
_MODEL_GRAPH, _MODEL_OPSET, _GRAPH_NODE, _GRAPH_INITIALIZER = 7, 8, 1, 5

# Channels are reordered four at a time.
_QUAD = 4
# Channels up to which a dense direct convolution beats a large matrix product.
MANY_CHANNELS = 128
# Fewer are read as they are, by a kernel that is no faster.
FEW_CHANNELS = 8
# Channels are filled up to whole blocks; so much more work is still worth it.
MOST_FILLING = 1.4

Dims = tuple[int, ...]
_CONVOLUTIONS = ("Conv", "ConvTranspose")
# So begin the names of all nodes that stand in for convolutions; `PART` ends what those of one have in common.
PREFIX, PART = "blocked/", "|"


@dataclass(frozen=True)
class _Sizes:
    """What the choice depends on: channels, kernel and groups of a convolution over images."""

    channels_in: int
    channels_out: int
    kernel: Dims
    group: int
    block: int

    @property
    def depthwise(self) -> bool:
        """One filter for each channel?"""
        return self.group > 1 and self.group == self.channels_in == self.channels_out

    def whole(self, channels: int) -> int:
        """Channels with the last block filled up."""
        return -(-channels // self.block) * self.block

    @property
    def pays(self) -> bool:
        """Is the blocked form faster? Measured with onnxruntime 1.31 on x86-64, images of 4 to 32 positions a side."""
        if self.channels_in % _QUAD or self.channels_out % _QUAD or math.prod(self.kernel) == 1:
            return False
        filling = self.whole(self.channels_in) / self.channels_in
        if self.depthwise:
            return filling <= MOST_FILLING
        filling *= self.whole(self.channels_out) / self.channels_out
        fits = self.channels_in >= FEW_CHANNELS and max(self.channels_in, self.channels_out) <= MANY_CHANNELS
        return self.group == 1 and fits and filling <= MOST_FILLING


@cache
def block_size() -> int:
    """How many channels lie side by side in the blocked layout of this processor; 0 where it is not to be used."""
    # Elsewhere the operators may be there without kernels that keep to their bounds.
    return _probe() if platform.machine().lower() in ("x86_64", "amd64") else 0


def block_convolutions(graph: bytes, *, what: str) -> bytes:
    """The graph with the convolutions that gain from it in blocked form; the very same bytes where none does."""
    try:
        outline = scan(graph, what=what)
        if not any(operator in _CONVOLUTIONS for _, operator in outline.operators) or not (block := block_size()):
            return graph
        editor = _Editor(block, _known_shapes(outline, what))
    except BadArtifact:
        # What is wrong with a graph is for the check to say, or for the session.
        return graph
    nodes = [editor.replaced(node) for node in outline.graph.nodes]
    return _with_nodes(graph, nodes, editor.constants) if any(nodes) else graph


def _known_shapes(outline: Outline, what: str) -> dict[str, Dims]:
    """Shapes of values whose axes have fixed sizes, all but the first, which is -1 where it is not known."""
    from fedwright.protocol.dataflow.analysis import follow_all
    from fedwright.protocol.dataflow.values import Dim, Kind, Rows, Value

    given = {}
    for item in outline.inputs:
        sizes = item.dims or ()
        dims: list[Dim] = [size if size >= 0 else (Rows() if at == 0 else None) for at, size in enumerate(sizes)]
        given[item.name] = Value(Kind.ROWS if Rows() in dims else Kind.FIXED, tuple(dims))
    found: dict[str, Dims] = {}
    for name, value in follow_all(outline.graph, given, what=what).items():
        rest = [dim for dim in (value.dims or ())[1:] if isinstance(dim, int)]
        if value.dims and len(rest) == len(value.dims) - 1:
            first = value.dims[0]
            found[name] = (first if isinstance(first, int) else -1, *rest)
    return found


class _Editor:
    """Makes the nodes that stand in for a convolution; what reordered values they can share is kept."""

    def __init__(self, block: int, shapes: Mapping[str, Dims]) -> None:
        self.constants: dict[str, bytes] = {}
        self._block = block
        self._shapes = shapes
        self._reordered: dict[str, str] = {}
        self._name = ""

    def replaced(self, node: Node) -> list[bytes]:
        """The nodes in place of this one; none where it stays."""
        if node.operator not in _CONVOLUTIONS or any(name not in self._shapes for name in node.inputs):
            return []
        x, weight = (self._shapes[name] for name in node.inputs[:2])
        mirrored = node.operator == "ConvTranspose"
        if len(x) != 4 or len(weight) != 4 or (mirrored and not _turns(node)) or "auto_pad" in node.attributes:
            return []
        out = weight[1] if mirrored else weight[0]
        sizes = _Sizes(x[1], out, weight[2:], whole(node, "group", 1), self._block)
        return self._nodes(node, sizes, mirrored=mirrored) if sizes.pays else []

    def _nodes(self, node: Node, sizes: _Sizes, *, mirrored: bool) -> list[bytes]:
        made: list[bytes] = []
        x, y = node.inputs[0], node.outputs[0]
        self._name = f"{PREFIX}{y}"
        attributes = {name: ints(node, name) for name in ("strides", "dilations", "pads") if name in node.attributes}
        weight = node.inputs[1]
        if mirrored:
            weight = self._turned(made, weight, f"{PREFIX}{y}/turned")
            reach = [d * (k - 1) for d, k in zip(ints(node, "dilations", (1, 1)), sizes.kernel, strict=True)]
            attributes["pads"] = tuple(r - p for r, p in zip(reach * 2, ints(node, "pads", (0,) * 4), strict=True))
        if x not in self._reordered:
            self._reordered[x] = self._op(made, "ReorderInput", [x], f"{PREFIX}{x}/blocks")
        inputs = [self._reordered[x], self._weights(made, weight, sizes, f"{PREFIX}{y}/weights")]
        if len(node.inputs) > 2:
            inputs.append(self._bias(made, node.inputs[2], sizes, f"{PREFIX}{y}/bias"))
        group = sizes.whole(sizes.group) if sizes.depthwise else 1
        images = self._op(
            made, "Conv", inputs, f"{PREFIX}{y}/images", kernel_shape=sizes.kernel, group=group, **attributes
        )
        self._op(made, "ReorderOutput", [images], y, channels=sizes.channels_out)
        return made

    def _weights(self, made: list[bytes], weight: str, sizes: _Sizes, name: str) -> str:
        """The weights as a blocked convolution reads them, under the shape that its schema wants."""
        inner, outer = sizes.whole(sizes.channels_in), sizes.whole(sizes.channels_out)
        if sizes.depthwise:
            row = self._reshape(made, weight, (1, sizes.channels_in, *sizes.kernel), f"{name}/row")
            shape: Dims = (outer, 1, *sizes.kernel)
        else:
            by_input = self._op(made, "ReorderInput", [weight], f"{name}/inputs")
            entries = inner * math.prod(sizes.kernel)
            row = self._reshape(made, by_input, (1, sizes.channels_out, entries, 1), f"{name}/row")
            shape = (outer, inner, *sizes.kernel)
        return self._reshape(made, self._op(made, "ReorderInput", [row], f"{name}/blocks"), shape, name)

    def _bias(self, made: list[bytes], bias: str, sizes: _Sizes, name: str) -> str:
        more = sizes.whole(sizes.channels_out) - sizes.channels_out
        if not more:
            return bias
        made.append(write.node("Pad", [bias, self._constant((0, more))], [name], name=self._named(name)))
        return name

    def _turned(self, made: list[bytes], weight: str, name: str) -> str:
        """Weights of a transposed convolution as those of a plain one: [out, in, kernel turned round]."""
        ends = [self._constant(values) for values in ((-1, -1), (-(2**31), -(2**31)), (2, 3), (-1, -1))]
        made.append(write.node("Slice", [weight, *ends], [f"{name}/round"], name=self._named(f"{name}/round")))
        made.append(write.node("Transpose", [f"{name}/round"], [name], name=self._named(name), perm=(1, 0, 2, 3)))
        return name

    def _reshape(self, made: list[bytes], value: str, shape: Dims, name: str) -> str:
        made.append(write.node("Reshape", [value, self._constant(shape)], [name], name=self._named(name)))
        return name

    def _named(self, output: str) -> str:
        """The name of the node that makes this."""
        return f"{self._name}{PART}{output}"

    def _constant(self, values: Sequence[int]) -> str:
        name = f"{PREFIX}{'_'.join(map(str, values))}"
        self.constants[name] = write.whole_numbers(name, values)
        return name

    def _op(self, made: list[bytes], operator: str, inputs: Sequence[str], name: str, **attributes: int | Dims) -> str:
        made.append(write.node(operator, inputs, [name], domain=DOMAIN, name=self._named(name), **attributes))
        return name


def _turns(node: Node) -> bool:
    """Is this transposed convolution a plain one with its weights turned round?"""
    steps, more = ints(node, "strides", (1,)), ints(node, "output_padding", (0,))
    return (
        set(steps) == {1} and not any(more) and whole(node, "group", 1) == 1 and "output_shape" not in node.attributes
    )


def _with_nodes(graph: bytes, nodes: Sequence[list[bytes]], constants: Mapping[str, bytes]) -> bytes:
    """A model with the nodes of its graph replaced where there are others for them."""
    parts = [write.bytes_field(_MODEL_OPSET, write.operator_set(DOMAIN, _VERSION))]
    for number, wire, value in fields(memoryview(graph)):
        if number != _MODEL_GRAPH or isinstance(value, int):
            parts.append(write.field_again(number, wire, value))
            continue
        inside, rest = [], iter(nodes)
        for field, kind, part in fields(value):
            others = next(rest) if field == _GRAPH_NODE else []
            inside += [write.bytes_field(_GRAPH_NODE, other) for other in others]
            if not others:
                inside.append(write.field_again(field, kind, part))
        inside += [write.bytes_field(_GRAPH_INITIALIZER, constant) for constant in constants.values()]
        parts.append(write.bytes_field(_MODEL_GRAPH, b"".join(inside)))
    return b"".join(parts)


def _probe() -> int:
    """Blocks as an image of four channels shows them, if convolutions in them give what plain ones do."""
    try:
        first = write.node("ReorderInput", ["x"], ["y"], domain=DOMAIN)
        block = int(
            _run(_model(first, {"x": (1, _QUAD, 1, 1)}), {"x": np.zeros((1, _QUAD, 1, 1), np.float32)}).shape[1]
        )
        if block < _QUAD or not all(_agrees(block, group) for group in (1, 2 * block)):
            return 0
    except (*RUNTIME_ERRORS, ValueError):
        # This onnxruntime was built without them.
        return 0
    return block


def _agrees(block: int, group: int) -> bool:
    """Does a small convolution give the same in both forms?"""
    rng, channels = np.random.default_rng(0), 2 * block
    feeds = {
        "x": rng.standard_normal((2, channels, 5, 5), dtype=np.float32),
        "w": rng.standard_normal((channels, channels // group, 3, 3), dtype=np.float32),
    }
    shapes = {name: array.shape for name, array in feeds.items()}
    plain = _model(write.node("Conv", ["x", "w"], ["y"], pads=(1, 1, 1, 1), group=group), shapes)
    outline = scan(plain, what="a convolution")
    editor = _Editor(block, shapes)
    blocked = _with_nodes(plain, [editor.replaced(node) for node in outline.graph.nodes], editor.constants)
    return bool(np.allclose(_run(plain, feeds), _run(blocked, feeds), atol=_CLOSE))


def _model(node: bytes, inputs: Mapping[str, Dims]) -> bytes:
    given = [write.value_info(name, dims) for name, dims in inputs.items()]
    domain = [(DOMAIN, _VERSION)] if DOMAIN.encode() in node else []
    return write.model([node], given, [write.value_info("y", (-1,) * 4)], operators=[("", _OPSET), *domain])


def _run(model: bytes, feeds: Mapping[str, Array]) -> Array:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"], enable_fallback=0)
    (found,) = session.run(None, dict(feeds))
    return np.asarray(found)
