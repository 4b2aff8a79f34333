"""How operators that copy or stretch entries change what is known of a tensor: samples stay as many as they are."""

from collections.abc import Sequence

from fedwright.protocol.dataflow.values import Dim, Length, Number, Rows, Value, as_numbers, spoilt, with_dims
from fedwright.protocol.onnx_outline import Node


def tile(node: Node, inputs: Sequence[Value]) -> list[Value]:
    """Copies side by side, but not of the samples; entries may be copied to all samples, the same for each."""
    data, repeats = inputs[0], inputs[1].numbers
    if data.dims is None or repeats is None or len(repeats) != len(data.dims):
        return [spoilt(inputs, "Tile")]
    dims: list[Dim] = []
    for dim, times in zip(data.dims, repeats, strict=True):
        if isinstance(dim, Rows) and times != 1:
            return [spoilt(inputs, "Tile copies the samples")]
        if isinstance(times, Length) and not isinstance(dim, int):
            return [spoilt(inputs, "Tile lays entries along the samples")]
        if isinstance(times, Length) and isinstance(dim, int):
            dims.append(Rows(inner=times.times * dim, of=times.of))
        elif isinstance(dim, int) and isinstance(times, int):
            dims.append(dim * times)
        else:
            dims.append(dim if times == 1 else None)
    return [with_dims(inputs[:1], dims, "Tile")]


def resize(node: Node, inputs: Sequence[Value]) -> list[Value]:
    """Another size of images, by factors or sizes that stand in the graph; samples stay as many as they are."""
    data = inputs[0]
    scales = inputs[2].scales if len(inputs) > 2 else None
    sizes = inputs[3].numbers if len(inputs) > 3 else None
    odd = {"axes", "keep_aspect_ratio_policy"} & node.attributes.keys()
    crops = node.attributes.get("coordinate_transformation_mode") == "tf_crop_and_resize"
    if data.dims is None or len(scales or sizes or ()) != len(data.dims) or crops or odd:
        return [spoilt(inputs, "Resize")]
    made = [_scaled(*pair) for pair in zip(data.dims, scales, strict=True)] if scales else list(sizes or ())
    axis = data.rows_axis()
    if axis is not None and made[axis] != as_numbers(data.dims)[axis]:
        return [spoilt(inputs, "Resize along the samples")]
    dims: list[Dim] = [size if isinstance(size, int) else None for size in made]
    if axis is not None:
        dims[axis] = data.dims[axis]
    return [with_dims(inputs[:1], dims, "Resize")]


def _scaled(dim: Dim, scale: float) -> Number:
    """The length of an axis that is stretched."""
    if isinstance(dim, int):
        return int(dim * scale)
    return dim.length if isinstance(dim, Rows) and scale == 1 else None
