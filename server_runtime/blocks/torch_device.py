"""Where the server does its own maths: which device, what goes there and how, and how much memory it takes."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedwright.protocol.errors import ConfigError


def choose_device(wanted: str) -> str:
    """The device that a config asks for; `auto` takes CUDA where there is any."""
    present = torch.cuda.is_available()
    if wanted == "cuda" and not present:
        raise ConfigError("server.device is 'cuda' but torch finds no CUDA device; use 'auto' or 'cpu'")
    return "cuda" if present and wanted != "cpu" else "cpu"


def limit_memory(device: str, ratio: float) -> None:
    """Let this process take no more than a share of a GPU's memory; what asks for more fails with a sentence."""
    if torch.device(device).type == "cuda":
        torch.cuda.set_per_process_memory_fraction(ratio)


def on_device(values: NDArray[Any], device: str | torch.device) -> Tensor:
    """An array as a tensor there; to a GPU through pinned memory, so that nobody waits for the copy."""
    tensor = torch.from_numpy(np.ascontiguousarray(values))
    if torch.device(device).type == "cuda" and torch.cuda.is_available():
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)
