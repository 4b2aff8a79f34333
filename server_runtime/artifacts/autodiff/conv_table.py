"""Which form of a convolution's gradients to use for which sizes: the one place to tune for a board.

The choices were measured with onnxruntime 1.31 on x86-64 (AVX2 and AVX-512), 32 samples, one and two threads.
"""

from math import prod

from fedwright.server_runtime.artifacts.autodiff import conv_forms as forms
from fedwright.server_runtime.artifacts.autodiff.conv_forms import Form, Geometry

# Input channels up to which products per tap are too thin to pay.
FEW_CHANNELS = 4
# Channels from which large products over all samples are best on small images.
MANY_CHANNELS = 128
# Output positions per sample from which one product per sample beats one product over all samples.
MANY_POSITIONS = 200
FEW_POSITIONS = 32
# Samples to reckon with where the batch size decides.
ORDINARY_BATCH = 32
# Image positions up to which a depthwise convolution is faster as a dense matrix per channel.
DENSE_POSITIONS = 64


def weight_form(sizes: Geometry) -> Form:
    """The form of dW."""
    if sizes.group > 1:
        return _grouped(sizes)
    if prod(sizes.kernel) == 1:
        wide = sizes.channels_in * sizes.channels_out // (sizes.channels_in + sizes.channels_out)
        return forms.dw_per_sample if wide < sizes.positions else forms.dw_channels_first
    if sizes.channels_in <= FEW_CHANNELS or sizes.rank == 1:
        return forms.dw_shifted
    if sizes.positions >= MANY_POSITIONS and prod(sizes.stride) == 1 and sizes.rank == 2:
        return forms.dw_block
    wide = max(sizes.channels_in, sizes.channels_out) >= MANY_CHANNELS
    if wide and sizes.positions < (MANY_POSITIONS if prod(sizes.stride) == 1 else FEW_POSITIONS):
        return forms.dw_channels_first
    return forms.dw_positions_first


def _grouped(sizes: Geometry) -> Form:
    single = sizes.depthwise and sizes.channels_out == sizes.group
    return forms.dw_depthwise if single and sizes.rank == 2 else forms.dw_grouped


def input_form(sizes: Geometry) -> Form:
    """The form of dX."""
    reach = [d * (k - 1) for d, k in zip(sizes.dilation, sizes.kernel, strict=True)]
    inside = all(max(b, e) <= r for b, e, r in zip(sizes.begin, sizes.end, reach, strict=True))
    dense = sizes.group == 1 or (sizes.depthwise and sizes.channels_out == sizes.group)
    if prod(sizes.stride) > 1 or not inside or not dense:
        return forms.dx_transposed
    if max(sizes.kernel) > 3 or sizes.channels_in <= FEW_CHANNELS:
        return forms.dx_transposed
    return forms.dx_turned


def dense_pays(sizes: Geometry) -> bool:
    """Is this depthwise convolution faster as one small dense matrix per channel?"""
    single = sizes.depthwise and sizes.channels_out == sizes.group
    return single and max(prod(sizes.size_in), sizes.positions) <= DENSE_POSITIONS


def scaling_weights_pays(sizes: Geometry) -> bool:
    """Is a factor per output channel cheaper on the weights than on the output of an ordinary batch?"""
    weights = sizes.channels_in // sizes.group * prod(sizes.kernel)
    return 2 * weights < ORDINARY_BATCH * sizes.positions
