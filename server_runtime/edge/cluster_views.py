"""Views of clusters as bytes, as they cross from edge to edge."""

from collections.abc import Mapping

import numpy as np

from fedwright.protocol import tensors
from fedwright.protocol.errors import BadBlob
from fedwright.server_runtime.blocks.fedconv.cluster_exchange import Array, ClassMeans, ClusterView

# Between a cluster's name, which is a device's, and what a tensor is; no id holds it.
BETWEEN = "\n"
WEIGHT, LABELS, ANSWERS = "weight", "labels", "answers"
MEANS, MEANS_OF, COUNTS = "means", "means_of", "counts"


def pack_views(views: Mapping[str, ClusterView]) -> bytes:
    """Views as one blob; nothing is rounded: last layers and class means are float32 where they come from."""
    found: dict[str, Array] = {}
    for name, view in views.items():
        labels = sorted(view.answers)
        own: dict[str, Array] = {
            WEIGHT: view.weight.astype(np.float32),
            LABELS: np.array(labels, np.int64),
            ANSWERS: np.array([view.answers[label] for label in labels], np.float64).reshape(len(labels), -1),
        }
        if view.means is not None:
            own |= {MEANS: view.means.x.astype(np.float32), MEANS_OF: view.means.y, COUNTS: view.means.weight}
        found |= {f"{name}{BETWEEN}{kind}": value for kind, value in own.items()}
    return tensors.save(found)


def unpack_views(data: bytes, *, classes: int) -> dict[str, ClusterView]:
    """The views in bytes that another edge made; BadBlob unless each is whole and of this many classes."""
    parts: dict[str, dict[str, Array]] = {}
    for title, value in tensors.load(data).items():
        name, _, kind = title.partition(BETWEEN)
        parts.setdefault(name, {})[kind] = value
    return {name: _view(name, own, classes) for name, own in parts.items()}


def _view(name: str, own: Mapping[str, Array], classes: int) -> ClusterView:
    weight = _floats(name, own, WEIGHT, classes, None)
    labels = _labels(name, own, LABELS, classes)
    answers = _floats(name, own, ANSWERS, len(labels), classes)
    if (answers < 0).any() or (answers > 1).any():
        raise BadBlob(f"the answers of cluster {name!r} are not shares of 1")
    view = ClusterView(weight, {int(label): answer for label, answer in zip(labels, answers, strict=True)})
    if MEANS not in own:
        return view
    y = _labels(name, own, MEANS_OF, classes)
    x = _floats(name, own, MEANS, len(y), weight.shape[1])
    counts = _floats(name, own, COUNTS, len(y))
    if (counts <= 0).any():
        raise BadBlob(f"cluster {name!r} has class means of nothing")
    return ClusterView(weight, view.answers, ClassMeans(x, y, counts))


def _floats(name: str, own: Mapping[str, Array], kind: str, *shape: int | None) -> Array:
    """A finite tensor of this shape (None: any length) in double precision."""
    value = own.get(kind)
    fits = value is not None and len(value.shape) == len(shape)
    if value is None or not fits or any(want not in (None, has) for want, has in zip(shape, value.shape, strict=True)):
        raise BadBlob(f"the {kind} of cluster {name!r} are missing or have another shape than {list(shape)}")
    if not np.issubdtype(value.dtype, np.floating) or not np.isfinite(value).all():
        raise BadBlob(f"the {kind} of cluster {name!r} are not all finite numbers")
    return value.astype(np.float64)


def _labels(name: str, own: Mapping[str, Array], kind: str, classes: int) -> Array:
    """Different classes, in order."""
    value = own.get(kind)
    if value is None or value.ndim != 1 or not np.issubdtype(value.dtype, np.integer):
        raise BadBlob(f"the {kind} of cluster {name!r} are missing or not a list of classes")
    if len(value) and (value[0] < 0 or value[-1] >= classes or (np.diff(value) <= 0).any()):
        raise BadBlob(f"the {kind} of cluster {name!r} are not classes 0 … {classes - 1} in order")
    return value.astype(np.int64)
