"""ONNX graphs of any version of the operators, written in the version that training graphs are made of."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper, inliner, numpy_helper, version_converter

from fedwright.protocol.errors import ConfigError

OPSET = 17
_DOMAINS = ("", "ai.onnx")


def convert(model: onnx.ModelProto, where: str) -> onnx.ModelProto:
    """The same function in standard operators of version 17; ConfigError where there is no way to say it."""
    if model.functions:
        model = inliner.inline_local_functions(model)
    foreign = sorted({f"{node.domain}::{node.op_type}" for node in model.graph.node if node.domain not in _DOMAINS})
    if foreign:
        raise ConfigError(
            f"{where} uses {', '.join(foreign[:5])}, which standard ONNX does not have; save it with standard operators"
        )
    version = next((item.version for item in model.opset_import if item.domain in _DOMAINS), 0)
    if version > onnx.defs.onnx_opset_version():
        raise ConfigError(
            f"{where} is of operator version {version}, which is newer than the {onnx.defs.onnx_opset_version()} known "
            f"here; save it with opset {OPSET}"
        )
    unknown = sorted({node.op_type for node in model.graph.node if not _known(node.op_type, version)})
    if unknown:
        raise ConfigError(f"{where} uses {', '.join(unknown[:5])}, which operators of version {version} do not have")
    if version < OPSET:
        return _raised(model, version, where)
    return _lowered(model, version, where) if version > OPSET else model


def _raised(model: onnx.ModelProto, version: int, where: str) -> onnx.ModelProto:
    try:
        return version_converter.convert_version(model, OPSET)
    except (RuntimeError, ValueError, onnx.checker.ValidationError) as err:
        reason = (str(err).splitlines() or ["no reason given"])[0][:200]
        raise ConfigError(
            f"{where} is of operator version {version} and cannot be read as {OPSET}: {reason}; save it with opset "
            f"{OPSET}"
        ) from err


def _lowered(model: onnx.ModelProto, version: int, where: str) -> onnx.ModelProto:
    """Operators that are too new are replaced by what they are made of; the others say the same in older words."""
    new = [("", name) for name in {node.op_type for node in model.graph.node} if not _known(name, OPSET)]
    if new:
        model = inliner.inline_selected_functions(model, new, inline_schema_functions=True)
        _settle_casts(model)
    known = _constants(model)
    for node in model.graph.node:
        if not _known(node.op_type, OPSET):
            raise ConfigError(
                f"{where} uses {node.op_type} of operator version {version}, for which version {OPSET} has no words; "
                f"save it with opset {OPSET}"
            )
        _lower(node, known, version, where)
    del model.opset_import[:]
    model.opset_import.append(helper.make_opsetid("", OPSET))
    model.ir_version = min(model.ir_version, 8)
    return model


def _settle_casts(model: onnx.ModelProto) -> None:
    """What an operator is made of says `of the type of that value`; say which."""
    seen = onnx.shape_inference.infer_shapes(model).graph
    kinds = {item.name: item.type.tensor_type.elem_type for item in [*seen.value_info, *seen.input, *seen.output]}
    kinds |= {tensor.name: tensor.data_type for tensor in seen.initializer}
    for node in model.graph.node:
        if node.op_type == "CastLike" and kinds.get(node.input[1]):
            node.op_type = "Cast"
            node.attribute.append(helper.make_attribute("to", kinds[node.input.pop()]))


def _known(name: str, version: int) -> bool:
    return bool(onnx.defs.has(name, max_inclusive_version=version, domain=""))


def _constants(model: onnx.ModelProto) -> dict[str, Any]:
    """Values of small integer constants by name."""
    found = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer if t.data_type == onnx.TensorProto.INT64}
    for node in model.graph.node:
        if node.op_type == "Constant":
            value = constant_value(node)
            if value.dtype == np.int64:
                found[node.output[0]] = value
    return found


def constant_value(node: onnx.NodeProto) -> Any:
    """What a Constant holds, in whichever of its forms."""
    attribute = node.attribute[0]
    value = helper.get_attribute_value(attribute)
    if attribute.name == "value":
        return numpy_helper.to_array(value)
    return np.array(value, np.int64 if attribute.name.startswith("value_int") else np.float32)


def _lower(node: onnx.NodeProto, known: Mapping[str, Any], version: int, where: str) -> None:
    """Rewrite one operator in place; attributes that an older form lacks go where they say what it does anyway."""
    new = onnx.defs.get_schema(node.op_type, max_inclusive_version=version, domain="")
    old = onnx.defs.get_schema(node.op_type, max_inclusive_version=OPSET, domain="")
    if new.since_version == old.since_version:
        return
    if node.op_type in _REWRITES or node.op_type.startswith("Reduce"):
        _REWRITES.get(node.op_type, _reduce)(node, known)
    for attribute in list(node.attribute):
        if attribute.name not in old.attributes:
            usual = helper.get_attribute_value(new.attributes[attribute.name].default_value)
            said = helper.get_attribute_value(attribute)
            if said != usual and not (isinstance(said, list) and set(said) <= {1}):
                _refuse(node, attribute.name, where)
            node.attribute.remove(attribute)
    while node.input and not node.input[-1]:
        del node.input[-1]
    if len(node.input) > len(old.inputs) and old.inputs[-1].option != onnx.defs.OpSchema.FormalParameterOption.Variadic:
        _refuse(node, new.inputs[len(old.inputs)].name, where)


def _refuse(node: onnx.NodeProto, what: str, where: str) -> None:
    raise ConfigError(
        f"{where}: {node.op_type} {node.name} uses {what}, which operators of version {OPSET} do not have; save it "
        f"with opset {OPSET}"
    )


def _reduce(node: onnx.NodeProto, known: Mapping[str, Any]) -> None:
    """Axes were an attribute; without any, `noop_with_empty_axes` is not said."""
    if node.op_type == "ReduceSum":
        return
    axes = known.get(node.input[1]) if len(node.input) > 1 and node.input[1] else None
    if len(node.input) > 1 and (axes is not None or not node.input[1]):
        del node.input[1:]
    if axes is not None and axes.size:
        node.attribute.append(helper.make_attribute("axes", axes.tolist()))


def _split(node: onnx.NodeProto, known: Mapping[str, Any]) -> None:
    """Equal parts are what an older Split makes when it is told nothing."""
    for attribute in list(node.attribute):
        if attribute.name == "num_outputs":
            node.attribute.remove(attribute)


def _resize(node: onnx.NodeProto, known: Mapping[str, Any]) -> None:
    """An older one asks for all of its inputs by place, as this one does."""


_REWRITES: dict[str, Callable[[onnx.NodeProto, Mapping[str, Any]], None]] = {"Split": _split, "Resize": _resize}
