"""ONNX files as models: read, checked, in operators of our version, for batches of any size."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from fedwright.protocol.errors import ConfigError
from fedwright.server_runtime.model_names import ONNX
from fedwright.server_runtime.zoo.onnx_opset import constant_value, convert

LARGEST_BYTES = 1_900_000_000
BATCH = "x"
# Inputs beside the words of a text that say nothing of it: what each holds where nobody says more.
_SILENT = {"attention_mask": 1, "token_type_ids": 0}
# What these read after their first input says how, and is not learnt.
_SETTINGS = ("Resize", "Upsample", "Clip", "Pad", "Range", "OneHot", "TopK", "ConstantOfShape", "Tile", "Expand")
_LAYERS = ("Conv", "ConvTranspose", "Gemm", "MatMul", "BatchNormalization", "LayerNormalization", "PRelu")
_RECURRENT = ("LSTM", "GRU", "RNN")
_KINDS = {onnx.TensorProto.FLOAT: "float32", onnx.TensorProto.INT64: "int64", onnx.TensorProto.INT32: "int64"}
_CLOSE = 1e-3


@dataclass(frozen=True)
class OnnxFile:
    """A file that was read: its graph without weights, whose one input is `x`; weights and statistics by name.

    dims: what one sample looks like, None where the file leaves it open. norms: tensors of normalisation layers.
    """

    model: onnx.ModelProto
    dtype: str
    dims: tuple[int | None, ...]
    weights: dict[str, NDArray[Any]] = field(default_factory=dict)
    statistics: dict[str, NDArray[Any]] = field(default_factory=dict)
    norms: frozenset[str] = frozenset()


def path_of(model: str) -> Path:
    """The file that `onnx:file` names."""
    return Path(model.removeprefix(ONNX)).expanduser()


def read(model: str) -> OnnxFile:
    """The file that `onnx:file` names; one that did not change is read once."""
    path = path_of(model)
    try:
        told = path.stat()
    except OSError as err:
        raise ConfigError(f"model {model} cannot be read: {err.strerror}; give the path of an ONNX file") from err
    return _read(str(path), told.st_mtime_ns, told.st_size)


@lru_cache(maxsize=4)
def _read(path: str, changed_ns: int, size: int) -> OnnxFile:
    del changed_ns
    if size > LARGEST_BYTES:
        raise ConfigError(
            f"{path} has {size / 1e9:.1f} GB, but one graph can hold {LARGEST_BYTES / 1e9:.1f}; shrink it"
        )
    where = Path(path).name
    given = _load(path, where)
    model = convert(_copy(given), where)
    graph = model.graph
    _settle_constants(graph)
    given_batch = _open_batch(graph, where)
    dtype, dims = _one_input(graph, where)
    del graph.value_info[:]
    if None not in dims:
        rows = _rows(model, given_batch or 2, dims)
        _drop_zero_states(model, rows[:-1], where)
        _check_same(given, model, rows, fixed=bool(given_batch), where=where)
    _untie(graph)
    return _split_weights(model, dtype, dims, where)


def _load(path: str, where: str) -> onnx.ModelProto:
    try:
        model = onnx.load(path)
    except Exception as err:  # protobuf and what reads weights beside the file raise a dozen kinds
        reason = (str(err).splitlines() or [type(err).__name__])[0][:200]
        raise ConfigError(f"{where} is no ONNX file that can be read: {reason}; export the model again") from err
    if not model.graph.node or not model.graph.output:
        raise ConfigError(f"{where} holds no graph; give the path of an ONNX file")
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT and not np.isfinite(numpy_helper.to_array(tensor)).all():
            raise ConfigError(f"{where}: {tensor.name} holds values that are no numbers; give a file without them")
    return model


def _copy(model: onnx.ModelProto) -> onnx.ModelProto:
    found = onnx.ModelProto()
    found.CopyFrom(model)
    return found


def _settle_constants(graph: onnx.GraphProto) -> None:
    """Every Constant in the one form that has a tensor."""
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute[0].name != "value":
            value = numpy_helper.from_array(np.asarray(constant_value(node)), node.output[0])
            del node.attribute[:]
            node.attribute.append(helper.make_attribute("value", value))


def _open_batch(graph: onnx.GraphProto, where: str) -> int:
    """Let the first axis of every input be free, also where a file was made for one batch; that size, or 0."""
    held = {tensor.name for tensor in graph.initializer}
    kept = [item for item in graph.input if item.name not in held]
    del graph.input[:]
    graph.input.extend(kept)
    sizes = set()
    for item in graph.input:
        dims = item.type.tensor_type.shape.dim
        if not dims:
            raise ConfigError(f"{where}: input {item.name} has no batch axis; export it with one sample per row")
        sizes.add(dims[0].dim_value)
        dims[0].Clear()
        dims[0].dim_param = "batch"
    if len(sizes) > 1:
        raise ConfigError(f"{where}: its inputs have {sorted(sizes)} rows each; export them with one batch axis")
    batch = sizes.pop() if sizes else 0
    if batch:
        _free_reshapes(graph, batch)
    return batch


def _free_reshapes(graph: onnx.GraphProto, batch: int) -> None:
    """A Reshape to the batch that a file was made for takes the batch as it comes."""
    constants = {t.name: t for t in graph.initializer}
    constants |= {n.output[0]: n.attribute[0].t for n in graph.node if n.op_type == "Constant"}
    follows = {item.name for item in graph.input}
    number = 0
    for node in graph.node:
        if not follows.intersection(node.input):
            continue
        follows.update(node.output)
        if node.op_type != "Reshape" or node.input[1] not in constants:
            continue
        shape = numpy_helper.to_array(constants[node.input[1]]).copy()
        if shape.size and shape[0] == batch:
            shape[0] = 0 if -1 in shape else -1
            number += 1
            name = f"{node.input[1]}/free{number}"
            graph.initializer.append(numpy_helper.from_array(shape, name))
            node.input[1] = name


def _one_input(graph: onnx.GraphProto, where: str) -> tuple[str, tuple[int | None, ...]]:
    """Name the batch `x`, as 64-bit integers where it counts; type and shape of one sample."""
    beside = [item for item in graph.input if item.name in _SILENT]
    main = [item for item in graph.input if item.name not in _SILENT]
    if len(main) != 1:
        names = ", ".join(item.name for item in main) or "nothing"
        raise ConfigError(f"{where} reads {names}, but a device's data has one input, x; export it with one input")
    kind, shape = main[0].type.tensor_type.elem_type, main[0].type.tensor_type.shape
    if kind not in _KINDS:
        name = onnx.TensorProto.DataType.Name(kind)
        raise ConfigError(
            f"{where}: its input is {name}, but devices give float32 or int64; export it with one of them"
        )
    dims = tuple(dim.dim_value or None for dim in shape.dim)[1:]
    front = _renamed(graph, main[0], kind)
    for item in beside:
        front += _constant_like_x(item)
    rest = list(graph.node)
    del graph.node[:]
    graph.node.extend([*front, *rest])
    del graph.input[:]
    value = helper.np_dtype_to_tensor_dtype(np.dtype(_KINDS[kind]))
    graph.input.append(helper.make_tensor_value_info(BATCH, value, ["batch", *dims]))
    return _KINDS[kind], dims


def _renamed(graph: onnx.GraphProto, item: onnx.ValueInfoProto, kind: int) -> list[onnx.NodeProto]:
    if item.name == BATCH and kind != onnx.TensorProto.INT32:
        return []
    # A value of that name inside the file would be another one.
    for node in graph.node:
        for names in (node.input, node.output):
            for place, name in enumerate(names):
                if name == BATCH:
                    names[place] = f"{BATCH}/inner"
    made = f"{BATCH}/inner" if item.name == BATCH else item.name
    if kind == onnx.TensorProto.INT32:
        return [helper.make_node("Cast", [BATCH], [made], to=kind)]
    return [helper.make_node("Identity", [BATCH], [made])]


def _constant_like_x(item: onnx.ValueInfoProto) -> list[onnx.NodeProto]:
    value = numpy_helper.from_array(np.array([_SILENT[item.name]], np.int64))
    shape, full = f"{item.name}/shape", f"{item.name}/full"
    return [
        helper.make_node("Shape", [BATCH], [shape]),
        helper.make_node("ConstantOfShape", [shape], [full], value=value),
        helper.make_node("Cast", [full], [item.name], to=item.type.tensor_type.elem_type),
    ]


def _drop_zero_states(model: onnx.ModelProto, rows: NDArray[Any], where: str) -> None:
    """First states of zeros that were written for one batch are what a recurrent layer begins with anyway."""
    recurrent = [node for node in model.graph.node if node.op_type in _RECURRENT]
    held = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    asked = sorted({name for node in recurrent for name in node.input[5:] if name and name not in held})
    if asked:
        told = _copy(model)
        del told.graph.output[:]
        told.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in asked)
        held |= dict(zip(asked, _run(told, rows, where), strict=True))
    for node in recurrent:
        for place in range(5, len(node.input)):
            if node.input[place] and not held[node.input[place]].any():
                node.input[place] = ""
    _prune(model.graph)


def _prune(graph: onnx.GraphProto) -> None:
    """Drop what no output depends on."""
    live, kept = {item.name for item in graph.output}, []
    for node in reversed(graph.node):
        if live.intersection(node.output):
            kept.append(node)
            live.update(node.input)
            inner = [item.g for item in node.attribute if item.type == onnx.AttributeProto.GRAPH]
            live.update(name for body in inner for step in body.node for name in step.input)
    del graph.node[:]
    graph.node.extend(kept[::-1])


def _untie(graph: onnx.GraphProto) -> None:
    """Exporters store equal tensors once, such as all the ones of new normalisation layers: each gets its own again."""
    flat = {t.name: t for t in graph.initializer if t.data_type == onnx.TensorProto.FLOAT}
    kept = []
    for node in graph.node:
        held = flat.get(node.input[0]) if node.op_type == "Identity" else None
        array = None if held is None else numpy_helper.to_array(held)
        if array is not None and array.size > 1 and (array == array.flat[0]).all():
            graph.initializer.append(numpy_helper.from_array(array, node.output[0]))
        else:
            kept.append(node)
    del graph.node[:]
    graph.node.extend(kept)


def _rows(model: onnx.ModelProto, batch: int, dims: tuple[int | None, ...]) -> NDArray[Any]:
    """Drawn samples, one more than `batch`."""
    rng, shape = np.random.default_rng(0), (batch + 1, *(dim or 1 for dim in dims))
    if model.graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.INT64:
        return rng.integers(0, 2, shape)
    return rng.standard_normal(shape).astype(np.float32)


def _check_same(given: onnx.ModelProto, ours: onnx.ModelProto, rows: NDArray[Any], *, fixed: bool, where: str) -> None:
    """Run both on drawn samples: what was read must be the file, and a sample's answer its own in any batch."""
    size = len(rows) - 1
    wanted, found = _run(given, rows[:size], where), _run(ours, rows[:size], where)
    try:
        more = _run(ours, rows, where)
    except ConfigError as err:
        raise ConfigError(f"{where} was made for batches of {size} alone; export it with a free batch axis") from err
    for one, same, longer in zip(wanted, found, more, strict=True):
        limit = _CLOSE * max(1.0, float(np.abs(one).max(initial=0)))
        if same.shape != one.shape or not np.allclose(same, one, atol=limit, rtol=0):
            raise ConfigError(f"{where} answers otherwise in operators of version 17; save it with opset 17")
        if longer.shape[:1] != (size + 1,) or not np.allclose(longer[:size], one, atol=limit, rtol=0):
            made = f"was made for batches of {size} alone" if fixed else "mixes the samples of a batch"
            raise ConfigError(f"{where} {made}; export it with a free batch axis, one row per sample")


def _run(model: onnx.ModelProto, rows: NDArray[Any], where: str) -> list[NDArray[Any]]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    held = {tensor.name for tensor in model.graph.initializer}
    try:
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        feeds = {item.name: _feed(item, rows) for item in model.graph.input if item.name not in held}
        return [np.asarray(value) for value in session.run(None, feeds)]
    except Exception as err:  # the runtime raises a dozen kinds
        reason = (str(err).splitlines() or [type(err).__name__])[0][:200]
        raise ConfigError(f"{where} does not run with {len(rows)} samples: {reason}; export the model again") from err


def _feed(item: onnx.ValueInfoProto, rows: NDArray[Any]) -> NDArray[Any]:
    kind = helper.tensor_dtype_to_np_dtype(item.type.tensor_type.elem_type)
    filled = np.full(rows.shape, _SILENT[item.name]) if item.name in _SILENT else rows
    return filled.astype(kind)


def _split_weights(model: onnx.ModelProto, dtype: str, dims: tuple[int | None, ...], where: str) -> OnnxFile:
    """Take what is learnt out of the graph; what says how to compute stays in it."""
    graph = model.graph
    layers, settings, statistics, norms = _readers(graph.node)
    weights: dict[str, NDArray[Any]] = {}
    kept = []
    for tensor in graph.initializer:
        array = numpy_helper.to_array(tensor)
        single = array.size < 2 and tensor.name not in layers
        if array.dtype in (np.float16, np.float64) and (tensor.name in layers or array.size > 1):
            raise ConfigError(f"{where}: {tensor.name} is {array.dtype}, but devices train float32; save it so")
        if array.dtype != np.float32 or single or (tensor.name in settings and tensor.name not in layers):
            kept.append(tensor)
        else:
            weights[tensor.name] = array
    if not weights:
        raise ConfigError(
            f"{where} has no weights as initializers, so that nothing can be trained; export them with it"
        )
    del graph.initializer[:]
    graph.initializer.extend(kept)
    own = {name: weights.pop(name) for name in list(weights) if name in statistics}
    return OnnxFile(model, dtype, dims, weights, own, frozenset(norms))


def _readers(nodes: Iterable[onnx.NodeProto]) -> tuple[set[str], set[str], set[str], set[str]]:
    """Names read by layers, as settings, as running statistics, and by normalisation of any kind."""
    layers, settings, statistics, norms = set[str](), set[str](), set[str](), set[str]()
    for node in nodes:
        if node.op_type in _SETTINGS:
            settings.update(node.input[1:])
        if node.op_type in _LAYERS or node.op_type in _RECURRENT:
            layers.update(node.input)
        if re.search("Normalization$", node.op_type):
            norms.update(node.input[1:])
        if node.op_type == "BatchNormalization":
            statistics.update(node.input[3:])
    return layers, settings, statistics, norms
