"""All methods there are: importing this module registers them."""

from fedwright.server_runtime.methods import framp, hasa, hyperflora, pfedclub
from fedwright.server_runtime.methods.base import METHODS, Entry, find
from fedwright.server_runtime.methods.baselines import (
    fedavg,
    feddropout,
    fedmd,
    fedprox,
    fedrolex,
    fiarse,
    heterofl,
    masked,
    pfedhn,
    scalefl,
    standalone,
)

__all__ = [
    "METHODS",
    "Entry",
    "fedavg",
    "feddropout",
    "fedmd",
    "fedprox",
    "fedrolex",
    "fiarse",
    "find",
    "framp",
    "hasa",
    "heterofl",
    "hyperflora",
    "masked",
    "pfedclub",
    "pfedhn",
    "scalefl",
    "standalone",
]
