"""torch.nn.Module -> Graph by torch's tracing exporter, and ONNX models as Graphs."""

import io
from typing import Any

import onnx
import torch
from onnx import helper, numpy_helper
from torch import nn

from fedwright.protocol.errors import BuildError, UnsupportedOperator
from fedwright.server_runtime.artifacts.autodiff.graph import OPSET, Graph, Node, Value
from fedwright.server_runtime.artifacts.module_tensors import shared_names, state_tensors
from fedwright.server_runtime.artifacts.symbolics.registry import DOMAIN, quiet_tracing
from fedwright.server_runtime.artifacts.trial import layer_calling


def traced(module: nn.Module, inputs: tuple[Value, ...], examples: tuple[torch.Tensor, ...]) -> Graph:
    """The graph of a module that one run left behind; BuildError where it cannot be followed."""
    buffer = io.BytesIO()
    with quiet_tracing():
        try:
            torch.onnx.export(
                module,
                examples,
                buffer,  # type: ignore[arg-type]
                dynamo=False,
                opset_version=OPSET,
                do_constant_folding=False,
                training=torch.onnx.TrainingMode.PRESERVE,
                export_params=False,
                input_names=[value.name for value in inputs],
                dynamic_axes={v.name: {i: v.free for i, dim in enumerate(v.shape) if dim == -1} for v in inputs},
            )
        except torch.onnx.errors.UnsupportedOperatorError as err:
            operator = _operator_in(err)
            layer = layer_calling(module, examples, operator)
            raise UnsupportedOperator(operator, "not exported", layer) from err
        except (RuntimeError, ValueError, TypeError, IndexError, torch.onnx.OnnxExporterError) as err:
            reason = (str(err).splitlines() or [type(err).__name__])[0][:300]
            raise BuildError(
                f"{type(module).__name__} cannot be traced with an input of shape {inputs[0].shape}: {reason}"
            ) from err
    return parse(onnx.load_from_string(buffer.getvalue()), inputs, module)


def _operator_in(err: Exception) -> str:
    words = [word.strip("'\",.") for word in str(err).split() if "::" in word]
    return words[0] if words else "unknown"


def parse(model: onnx.ModelProto, inputs: tuple[Value, ...], module: nn.Module) -> Graph:
    """An exported model as a Graph whose inputs are the batch, the parameters and the buffers."""
    graph = Graph(inputs)
    known = {value.name for value in inputs}
    tensors = state_tensors(module)
    constants = dict(module.named_buffers())
    shared = shared_names(module)
    for item in model.graph.input:
        if item.name in shared:
            graph.nodes.append(Node("Identity", [shared[item.name]], [item.name], name=item.name))
        elif item.name in tensors:
            graph.add_input(Value(item.name, tuple(tensors[item.name].shape)))
        elif item.name in constants:
            graph.initializers[item.name] = constants[item.name].numpy()
        elif item.name not in known:
            raise BuildError(f"the exported graph reads {item.name}, which is no parameter of the model; register it")
    for tensor in model.graph.initializer:
        graph.initializers[tensor.name] = numpy_helper.to_array(tensor)
    for proto in model.graph.node:
        _append(graph, proto)
    for output in model.graph.output:
        graph.outputs.append(Value(output.name, ()))
    for name, array in graph.initializers.items():
        graph.record(name, array.shape, array.dtype)
    return graph


def _append(graph: Graph, proto: onnx.NodeProto) -> None:
    attrs = {item.name: _attribute(helper.get_attribute_value(item)) for item in proto.attribute}
    if proto.op_type == "Constant":
        graph.initializers[proto.output[0]] = numpy_helper.to_array(attrs["value"])
        return
    if "perm" in attrs:
        attrs["perm"] = [axis % len(attrs["perm"]) for axis in attrs["perm"]]
    module = ".".join(proto.name.split("/")[1:-1])
    if proto.domain == DOMAIN:
        graph.nodes.append(Node("Identity", list(proto.input), list(proto.output), {}, proto.name, module, stops=True))
        return
    graph.nodes.append(Node(proto.op_type, list(proto.input), list(proto.output), attrs, proto.name, module))


def _attribute(value: Any) -> Any:
    if isinstance(value, list):
        return [_attribute(item) for item in value]
    return value.decode() if isinstance(value, bytes) else value
