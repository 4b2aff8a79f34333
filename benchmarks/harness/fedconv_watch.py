"""What the FedConv suites look at besides the devices: the global model on all test rows."""

from typing import Any

import numpy as np
import torch

from fedwright.benchmarks.harness.suite import Job
from fedwright.server_runtime import zoo
from fedwright.server_runtime.methods.base import Method, Tensors
from fedwright.server_runtime.spec import ModelSpec
from fedwright.simulation.dealing import Dealt

GLOBAL = "global"
ROWS = 500


class GlobalAccuracy:
    """The model for no device in particular, on the test rows of all devices, after every measured round."""

    def __init__(self, job: Job, dealt: Dealt) -> None:
        del job
        self._x, self._y = whole_test(dealt)
        self._curve: list[float] = []

    def __call__(self, method: Method, number: int) -> None:
        """Measure it."""
        del number
        self._curve.append(accuracy(*method.model_of(""), self._x, self._y))

    def seen(self) -> dict[str, Any]:
        """Accuracy by measured round."""
        return {GLOBAL: self._curve}


def whole_test(dealt: Dealt) -> tuple[torch.Tensor, torch.Tensor]:
    """The test rows of all devices."""
    rows = np.sort(np.concatenate([share.test for share in dealt.shares.values()]))
    return torch.from_numpy(dealt.x[rows]), torch.from_numpy(dealt.y[rows])


def accuracy(spec: ModelSpec, weights: Tensors, x: torch.Tensor, y: torch.Tensor) -> float:
    """Share of rows that a model classifies right."""
    module = zoo.create(spec, seed=0)
    module.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in weights.items()}, strict=False)
    module.eval()
    with torch.no_grad():
        parts = zip(torch.split(x, ROWS), torch.split(y, ROWS), strict=True)
        right = sum(int((module(rows).argmax(1) == labels).sum()) for rows, labels in parts)
    return right / len(y)
