"""Models with adapters and the same ones without."""

from dataclasses import replace

from fedwright.server_runtime.spec import ModelSpec
from fedwright.server_runtime.zoo import MODELS


def with_rank(spec: ModelSpec, rank: int) -> ModelSpec:
    """The model with adapters of this rank; as it is where the zoo makes no adapters for it."""
    entry = MODELS.get(spec.model)
    if entry is None or entry.rank is None:
        return spec
    return replace(spec, sizes=tuple(sorted({**dict(spec.sizes), entry.rank: rank}.items())))


def without_adapters(spec: ModelSpec) -> ModelSpec | None:
    """The same model without adapters, where the zoo has it."""
    own = MODELS.get(spec.model)
    if own is None or own.rank is None:
        return None
    sizes = {group: size for group, size in own.sizes.items() if group != own.rank}
    for entry in MODELS.values():
        if entry.make is own.make and entry.rank is None and entry.sizes == sizes:
            return ModelSpec(entry.name, spec.input_shape, spec.classes)
    return None
