"""Methods with several sizes offer the next smaller one to a device without the memory for its own."""

from typing import Any

import numpy as np
import pytest

from fedwright.protocol.messages import Refusal
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.export import initial_weights
from fedwright.server_runtime.methods.base import Assignment, Setting
from fedwright.server_runtime.methods.baselines.fedrolex import FedRolex
from fedwright.server_runtime.methods.registry import METHODS
from fedwright.server_runtime.spec import ModelSpec, Optimizer
from helpers.fleet import report

SPEC = ModelSpec("cnn-small", (1, 8, 8), 10)


@pytest.fixture
def method() -> Any:
    entry = METHODS["fedrolex"]
    initial = initial_weights(zoo.create(SPEC, seed=0))
    setting = Setting(SPEC, Optimizer(), initial, learning_rate=0.1, batch=8, epochs=1, seed=3)
    return entry.make(entry.params(), setting)


def test_each_refusal_brings_the_next_smaller_submodel_and_in_the_end_nothing(method: FedRolex) -> None:
    assignment: Assignment | None = method.assign({"pi-0": report()}, 1)["pi-0"]
    widths, sizes = [], []
    while assignment is not None:
        widths.append(zoo.width_of(assignment.structure.spec))
        sizes.append(sum(np.size(value) for value in method.emit("pi-0", assignment).weights.values()))
        assignment = method.shrink("pi-0", assignment, Refusal("t", "over_budget", "no", need_bytes=2, free_bytes=1))

    assert len(widths) > 2
    assert widths == sorted(set(widths), reverse=True)
    assert sizes == sorted(set(sizes), reverse=True)
