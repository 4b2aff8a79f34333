"""Weights that somebody trained before, from a safetensors file, for a model of ours or of the user's own."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file

from fedwright.protocol.errors import ConfigError

Tensors = dict[str, NDArray[Any]]
# What PEFT puts before the names of the model that it wraps.
PEFT_PREFIX = "base_model.model."


def read_weights(file: str) -> Tensors:
    """All tensors of a file, by the names of the bare model."""
    try:
        # By torch, because numpy has no bfloat16.
        found = load_file(Path(file).expanduser())
    except (OSError, SafetensorError) as err:
        raise ConfigError(f"the weights cannot be read from {file}: {err}; give a safetensors file") from err
    return {
        name.removeprefix(PEFT_PREFIX).replace(".base_layer.", "."): (
            value.float() if value.is_floating_point() else value
        ).numpy()
        for name, value in found.items()
    }


def start_from(file: str, wanted: Tensors, *, fresh: Collection[str] = ()) -> Tensors:
    """The model's tensors as the file has them; those in `fresh` stay as they are where it has none of their shape.

    The file may hold others too.
    """
    found, started = read_weights(file), dict(wanted)
    for name, value in wanted.items():
        if name in found and found[name].shape == value.shape:
            started[name] = np.asarray(found[name], value.dtype)
        elif name not in fresh:
            here = f"shape {found[name].shape}" if name in found else "no such tensor"
            raise ConfigError(
                f"{file} has {here} for {name}, where the model has shape {value.shape}; "
                f"give the weights of the same model"
            )
    if all(started[name] is wanted[name] for name in wanted):
        raise ConfigError(f"{file} holds no tensor of the model; give the weights of the same model")
    return started
