"""Settings with which starter configs differ from the defaults, so that every method learns on the embedded digits.

By method, then by section of the config. Nothing here changes what a method does in a config that somebody wrote.
"""

from collections.abc import Mapping
from typing import Any

from fedwright.server_runtime.public_data.embedded_sets import STARTER_PUBLIC

Start = Mapping[str, Mapping[str, Any]]

# Two convolutional nets of different kind and one without convolutions.
UNLIKE: dict[str, Any] = {"own": {"models": ("cnn-small", "cnn-gn", "mlp")}}
# Each teacher is a graph of its own, which takes its time to build.
_FEW_ROUNDS = {"rounds": 4}
# Every ratio is there even where all devices could hold the whole model, and fewer passes than the paper's.
_CONVOLVED: Start = {
    "method": {
        "compress_epochs": 10,
        "again_epochs": 4,
        "dilate_epochs": 4,
        "weigh_epochs": 4,
        "levels": {"choose": "in_turn"},
    },
    "public": STARTER_PUBLIC,
}

STARTS: dict[str, Start] = {
    "fccl": {"method": UNLIKE, "public": STARTER_PUBLIC},
    "fedconv": _CONVOLVED,
    "fedgh": {"method": UNLIKE},
    "fedkemf": {"method": UNLIKE, "public": STARTER_PUBLIC},
    "fedmd": {"method": UNLIKE, "public": STARTER_PUBLIC},
    # These two have their convolutions in common.
    "flexifed": {"method": {"own": {"models": ("cnn-small", "cnn-lora")}}},
    "heterofl": {"method": {"levels": {"sizes": (1.0, 0.5, 0.25)}}},
    # Both take plain steps, without the momentum that others have here.
    "per-fedavg": {"train": {"learning_rate": 0.3}, "method": {"inner_rate": 0.05}},
    "pfedclub": {"run": _FEW_ROUNDS, "method": UNLIKE, "public": STARTER_PUBLIC},
    "pfedhn": {"method": {"parallel": True, "server_rate": 0.05}},
    "pfedhr": {"run": _FEW_ROUNDS, "method": {**UNLIKE, "candidates": 2}, "public": STARTER_PUBLIC},
    "pfedme": {
        "train": {"learning_rate": 0.2},
        "method": {"strength": 2.0, "rate": 0.4, "inner_steps": 4},
    },
    "slice-tuned": _CONVOLVED,
}
