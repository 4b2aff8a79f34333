"""Fedwright trains one learning task across a fleet of unequal edge devices."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedwright.api.build import training_graph
    from fedwright.api.costs import StepCost, predict
    from fedwright.api.data import Dataset
    from fedwright.api.device import Device
    from fedwright.api.graphs import Trainer, TrainingGraph
    from fedwright.api.runs import Run
    from fedwright.api.server import Server
    from fedwright.api.simulations import simulate
    from fedwright.protocol.errors import FedwrightError
    from fedwright.server_runtime.methods.base import Method

__version__ = "0.1.0"
__all__ = [
    "Dataset",
    "Device",
    "FedwrightError",
    "Method",
    "Run",
    "Server",
    "StepCost",
    "Trainer",
    "TrainingGraph",
    "predict",
    "simulate",
    "training_graph",
]

# Imported when first asked for: a device has no torch, and an agent starts faster without what it does not use.
_PLACES = {
    "Dataset": "fedwright.api.data",
    "Device": "fedwright.api.device",
    "FedwrightError": "fedwright.protocol.errors",
    "Method": "fedwright.server_runtime.methods.base",
    "Run": "fedwright.api.runs",
    "Server": "fedwright.api.server",
    "StepCost": "fedwright.api.costs",
    "Trainer": "fedwright.api.graphs",
    "TrainingGraph": "fedwright.api.graphs",
    "predict": "fedwright.api.costs",
    "simulate": "fedwright.api.simulations",
    "training_graph": "fedwright.api.build",
}

# Names that will go, and those that replace them; they work and warn for one minor release at least.
_RENAMED: dict[str, str] = {}


def __getattr__(name: str) -> Any:
    if name in _RENAMED:
        from warnings import warn

        better = _RENAMED[name]
        warn(f"fedwright.{name} will go; use fedwright.{better}", DeprecationWarning, stacklevel=2)
        name = better
    if name not in _PLACES:
        raise AttributeError(f"module 'fedwright' has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
