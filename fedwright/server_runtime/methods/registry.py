"""All methods there are: importing this module registers them."""

from fedwright.server_runtime.methods import framp, hasa, hyperflora
from fedwright.server_runtime.methods.base import METHODS, Entry, find
from fedwright.server_runtime.methods.baselines import (
    fedavg,
    feddropout,
    fedprox,
    fedrolex,
    fiarse,
    heterofl,
    masked,
    pfedhn,
    scalefl,
)

__all__ = [
    "METHODS",
    "Entry",
    "fedavg",
    "feddropout",
    "fedprox",
    "fedrolex",
    "fiarse",
    "find",
    "framp",
    "hasa",
    "heterofl",
    "hyperflora",
    "masked",
    "pfedhn",
    "scalefl",
]
