"""All methods there are: importing this module registers them."""

from fedwright.server_runtime.methods import fedconv, framp, hasa, hyperflora, pfedclub
from fedwright.server_runtime.methods.base import METHODS, Entry, find
from fedwright.server_runtime.methods.baselines import (
    adapters_private,
    fedavg,
    feddropout,
    fedgh,
    fedkemf,
    fedmd,
    fedprox,
    fedrolex,
    fiarse,
    flexifed,
    heterofl,
    masked,
    pfedhn,
    pfedhr,
    scalefl,
    standalone,
)

__all__ = [
    "METHODS",
    "Entry",
    "adapters_private",
    "fedavg",
    "fedconv",
    "feddropout",
    "fedgh",
    "fedkemf",
    "fedmd",
    "fedprox",
    "fedrolex",
    "fiarse",
    "find",
    "flexifed",
    "framp",
    "hasa",
    "heterofl",
    "hyperflora",
    "masked",
    "pfedclub",
    "pfedhn",
    "pfedhr",
    "scalefl",
    "standalone",
]
