"""Modules that PEFT has wrapped become ours: the same layers with the same adapters, in the names of the bare model.

PEFT itself is not needed for that: what counts is how its layers are built (base_layer, lora_A, lora_B, scaling).
"""

from typing import Any

import torch
from torch import nn

from fedwright.protocol.errors import ConfigError
from fedwright.server_runtime.zoo.low_rank import adapt

PARTS = ("base_layer", "lora_A", "lora_B", "scaling")


def unwrapped(module: nn.Module) -> nn.Module:
    """The bare model with our adapters in place of PEFT's; any other module as it is."""
    wrapped: Any = module
    replaced = hasattr(wrapped, "peft_config")
    while hasattr(wrapped, "peft_config") and hasattr(wrapped, "get_base_model"):
        wrapped = wrapped.get_base_model()
    bare: nn.Module = wrapped
    for name, layer in list(bare.named_modules()):
        if all(hasattr(layer, part) for part in PARTS) and len(layer.lora_A):
            _replace(bare, name, _ours(name, layer))
            replaced = True
    for value in bare.parameters() if replaced else ():
        # PEFT froze what is no adapter; which of these train is for a method to say.
        value.requires_grad_(True)
    return bare


def _ours(name: str, layer: Any) -> nn.Module:
    """The layer inside a wrapper, adapted; PEFT's scaling becomes a part of `up`."""
    adapters = list(layer.lora_A)
    if len(adapters) > 1:
        raise ConfigError(f"{name} has {len(adapters)} PEFT adapters ({', '.join(adapters)}); keep one of them")
    down, up = (getattr(layer, part)[adapters[0]].weight for part in ("lora_A", "lora_B"))
    holder = nn.ModuleDict({"layer": layer.base_layer})
    adapt(holder, ("layer",), rank=down.shape[0])
    inner: Any = holder["layer"]
    with torch.no_grad():
        inner.lora_down.copy_(down.flatten(1))
        inner.lora_up.copy_(float(layer.scaling[adapters[0]]) * up.flatten(1))
    found: nn.Module = inner
    return found


def _replace(module: nn.Module, name: str, layer: nn.Module) -> None:
    owner, _, last = name.rpartition(".")
    setattr(module.get_submodule(owner), last, layer)
