"""What a suite looks at in a method beside each device's accuracy: the union model, masks, prototypes."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedwright.benchmarks.harness.suite import Job
from fedwright.device_runtime.data.graph import inner_edges
from fedwright.device_runtime.data.local import LocalData
from fedwright.server_runtime import zoo
from fedwright.server_runtime.methods.base import Method, Tensors
from fedwright.server_runtime.methods.baselines.fiarse import Fiarse
from fedwright.server_runtime.methods.framp.method import Framp
from fedwright.server_runtime.seeds import number_of
from fedwright.server_runtime.spec import ModelSpec
from fedwright.simulation.dealing import Dealt, local_data

Array = NDArray[Any]
BATCH = 256
# Points of a curve over all entries.
POINTS = 101


@dataclass
class ModelView:
    """Counts which entries devices have in every measured round; looks at all else in the last, also early on."""

    job: Job
    dealt: Dealt
    sizes: int
    # Per size: how often each maskable entry was chosen.
    _chosen: dict[int, Array] = field(default_factory=dict)
    _seen: dict[str, Any] = field(default_factory=dict)

    def __call__(self, method: Method, number: int) -> None:
        """Look at the method after a round."""
        with one_thread():
            self._count(method)
            if "early" not in self._seen:
                self._seen["early"] = self._prototypes(method)
            if number == int(self.job.config["run"]["rounds"]):
                self._seen["late"] = self._prototypes(method)
                self._seen["union"] = [self._union(method, level) for level in range(self.sizes)]

    def seen(self) -> dict[str, Any]:
        """Union accuracy per size, mask coverage, prototypes early and late."""
        counts = [own for _, own in sorted(self._chosen.items())]
        covered = [float((own > 0).mean()) for own in counts]
        return {**self._seen, "coverage": covered, "curves": [cumulative(own) for own in counts]}

    def _count(self, method: Method) -> None:
        for device in self.training():
            weights = masked_model(method, device)
            if weights is not None:
                mask = np.concatenate([(value != 0).reshape(-1) for value in weights.values() if value.ndim > 1])
                level = self._level(device)
                self._chosen[level] = self._chosen.get(level, 0) + mask.astype(np.int64)

    def training(self) -> list[str]:
        """Devices that take part in rounds."""
        bystanders = int(self.job.config["simulate"]["bystanders"])
        return list(self.dealt.shares)[: len(self.dealt.shares) - bystanders]

    def _level(self, device: str) -> int:
        return number_of(device, self.job.seed) % self.sizes

    def _union(self, method: Method, level: int) -> float:
        """Accuracy of the common model at a size, on the test rows of all devices together."""
        model = load(*method.model_of(f"union-{level}"))
        owned = [local_data(self.dealt, device) for device in self.dealt.shares]
        right = sum(int((held_out_logits(model, data).argmax(axis=1) == data.y_holdout).sum()) for data in owned)
        return right / sum(len(data.y_holdout) for data in owned)

    def _prototypes(self, method: Method) -> list[dict[str, Any]]:
        """Mean embedding of each class on each device."""
        found = []
        for device in self.training():
            model, data = load(*method.model_of(device)), local_data(self.dealt, device)
            embedded, labels = embed(model, data), data.y
            for label in np.unique(labels).tolist():
                mean = [round(float(value), 4) for value in embedded[labels == label].mean(axis=0)]
                found.append({"class": label, "device": device, "mean": mean})
        return found


def masked_model(method: Method, device: str) -> Tensors | None:
    """A device's model at full size with zeros outside its mask; None for methods without masks."""
    if isinstance(method, Framp):
        return method.part(device)
    return method.model_of(device)[1] if isinstance(method, Fiarse) else None


def load(spec: ModelSpec, weights: Mapping[str, Array]) -> nn.Module:
    """A model with these weights, ready to predict."""
    model = zoo.create(spec, seed=0)
    model.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in weights.items()})
    return model.eval()


def predict(model: nn.Module, x: Array) -> Array:
    """Logits of the last exit."""
    return np.concatenate([_last(model(batch)).numpy() for batch in _batches(x)])


def held_out_logits(model: nn.Module, data: LocalData) -> Array:
    """Logits of a device's held-out part; of nodes among all that the device has."""
    if data.edges is None or not len(data.y_holdout):
        return predict(model, data.x_holdout)
    nodes = np.concatenate([data.x, data.x_holdout])
    with torch.no_grad():
        return _last(model(torch.from_numpy(nodes), torch.from_numpy(data.edges))).numpy()[len(data.y) :]


def embed(model: nn.Module, data: LocalData) -> Array:
    """What the last layer reads of the training part, flat; the logits where a model has no encoder and head."""
    encoder, x = getattr(model, "encoder", model), data.x
    if data.edges is not None:
        inner = torch.from_numpy(inner_edges(data.edges, np.arange(len(data.y))))
        with torch.no_grad():
            return _last(encoder(torch.from_numpy(np.asarray(x)), inner)).flatten(1).numpy()
    return np.concatenate([_last(encoder(batch)).flatten(1).numpy() for batch in _batches(x)])


def accuracy(model: nn.Module, x: Array, y: Array) -> float:
    """Share of the rows that are classified right."""
    return float((predict(model, x).argmax(axis=1) == y).mean())


def cumulative(counts: Array) -> list[float]:
    """Share of all choices that fall on the most chosen entries, at POINTS shares of the entries from 0 to 1."""
    ordered = np.concatenate([[0], np.cumsum(np.sort(counts)[::-1])])
    at = np.linspace(0, len(counts), POINTS).round().astype(np.int64)
    return [float(value) for value in ordered[at] / max(1, ordered[-1])]


@contextmanager
def one_thread() -> Iterator[None]:
    """Suites run as many jobs as there are cores; more threads would be in each other's way."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _batches(x: Array) -> Iterator[Tensor]:
    with torch.no_grad():
        for start in range(0, len(x), BATCH):
            yield torch.from_numpy(np.asarray(x[start : start + BATCH]))


def _last(found: Any) -> Tensor:
    exits: Tensor = found[-1] if isinstance(found, (tuple, list)) else found
    return exits
