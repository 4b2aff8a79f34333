"""All methods there are: importing this module registers them."""

from fedwright.server_runtime.methods import hasa, hyperflora, pfedclub
from fedwright.server_runtime.methods.base import METHODS, Entry, find
from fedwright.server_runtime.methods.baselines import (
    adapters_private,
    fedavg,
    fedavg_masked,
    feddropout,
    fedgh,
    fedkemf,
    fedmd,
    fedprox,
    fedrolex,
    fiarse,
    flexifed,
    heterofl,
    pfedhn,
    pfedhr,
    scalefl,
    slice_tuned,
    standalone,
)
from fedwright.server_runtime.methods.fedconv import method as fedconv
from fedwright.server_runtime.methods.framp import method as framp

__all__ = [
    "METHODS",
    "Entry",
    "adapters_private",
    "fedavg",
    "fedavg_masked",
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
    "pfedclub",
    "pfedhn",
    "pfedhr",
    "scalefl",
    "slice_tuned",
    "standalone",
]
