"""Which ONNX operators a model may consist of, so that it can be trained."""

from fedwright.server_runtime.artifacts.autodiff.engine import RULES
from fedwright.server_runtime.artifacts.autodiff.lowering import LOWERINGS

# A Scan is what recurrent layers become here; one of the user's own is refused.
_OWN = {"Scan"}


def supported_operators() -> list[str]:
    """All operators that have a gradient rule or become others that do."""
    return sorted((RULES.keys() | LOWERINGS.keys()) - _OWN)
