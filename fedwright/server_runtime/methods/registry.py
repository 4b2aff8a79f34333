"""All methods there are: importing this module registers them."""

from fedwright.server_runtime.methods.base import METHODS, Entry, find
from fedwright.server_runtime.methods.baselines import fedavg

__all__ = ["METHODS", "Entry", "fedavg", "find"]
