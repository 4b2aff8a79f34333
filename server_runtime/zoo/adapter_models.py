"""Models with adapters and the same ones without."""

from dataclasses import replace

import msgspec

from fedwright.server_runtime.spec import ModelSpec
from fedwright.server_runtime.zoo import ADAPTED, MODELS, Adapters


def with_rank(spec: ModelSpec, rank: int) -> ModelSpec:
    """The model with adapters of this rank; as it is where nobody makes adapters for it."""
    if spec.model.startswith(ADAPTED):
        return _spelled(spec, replace(Adapters.of(spec), rank=rank))
    entry = MODELS.get(spec.model)
    if entry is None or entry.rank is None:
        return spec
    return replace(spec, sizes=tuple(sorted({**dict(spec.sizes), entry.rank: rank}.items())))


def adapted(spec: ModelSpec, targets: str | tuple[str, ...], *, rank: int, scale: float) -> ModelSpec:
    """Any model with adapters in the layers that are named."""
    return _spelled(spec, Adapters(spec.model, targets, rank, scale))


def without_adapters(spec: ModelSpec) -> ModelSpec | None:
    """The same model without adapters, where there is one."""
    if spec.model.startswith(ADAPTED):
        return replace(spec, model=Adapters.of(spec).model)
    own = MODELS.get(spec.model)
    if own is None or own.rank is None:
        return None
    sizes = {group: size for group, size in own.sizes.items() if group != own.rank}
    for entry in MODELS.values():
        if entry.make is own.make and entry.rank is None and entry.sizes == sizes:
            return ModelSpec(entry.name, spec.input_shape, spec.classes)
    return None


def _spelled(spec: ModelSpec, adapters: Adapters) -> ModelSpec:
    return replace(spec, model=ADAPTED + msgspec.json.encode(adapters).decode())
