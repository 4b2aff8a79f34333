"""Which form of a convolution's gradients to use for which sizes: the one place to tune for a board."""

from fedwright.server_runtime.artifacts.autodiff import conv_forms as forms
from fedwright.server_runtime.artifacts.autodiff.conv_forms import Form, Geometry


def weight_form(sizes: Geometry) -> Form:
    """The form of dW."""
    if sizes.group > 1:
        return forms.dw_grouped
    return forms.dw_per_sample


def input_form(sizes: Geometry) -> Form:
    """The form of dX."""
    return forms.dx_transposed
