"""Every method's server side on a pretended CUDA device: nothing stays on the wrong one, and results are the same."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedwright.protocol.messages import DataSummary, Stats
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.builder import Builder, initial_weights
from fedwright.server_runtime.methods.base import Assignment, CheckedUpdate, Method, Tensors
from fedwright.server_runtime.methods.registry import METHODS, find
from fedwright.server_runtime.public_data.examples import PublicData
from fedwright.server_runtime.spec import ModelSpec
from helpers.fleet import report, setting
from helpers.pretended_cuda import pretended_cuda

SHAPE, CLASSES = (1, 8, 8), 4
COUNTS = {"a": [8, 8, 8, 0], "b": [1, 1, 12, 10]}
PUBLIC = PublicData(np.random.default_rng(3).random((12, *SHAPE), np.float32), np.arange(12) % CLASSES)
STATS = Stats(samples=10, steps=1, train_s=0.1, cpu_s=0.1, peak_rss_bytes=1)
# As little of the server's own training as passes every line.
EPOCHS = {f"{what}_epochs": 1 for what in ("pretrain", "compress", "again", "dilate", "weigh", "server")}
SHORT: dict[str, dict[str, Any]] = {"fedconv": EPOCHS, "slice-tuned": EPOCHS, "hyperflora": {"pretrain_rounds": 1}}
# Those whose maths is torch's; the others average in numpy and put nothing anywhere.
ON_TORCH = {"slice-tuned", "fedconv", "fedkemf", "framp", "hyperflora", "pfedclub", "pfedhn", "pfedhr"}
LENDING = {"pfedclub": "cnn-gn", "pfedhr": "cnn-gn"}


def played(name: str, device: str, builder: Builder) -> Tensors:
    """What two rounds make of a device's model, with all that is passed on, a state saved and one restored."""
    entry = find(name)
    spec = ModelSpec(LENDING.get(name, entry.model), SHAPE, CLASSES)
    known = setting(
        spec=spec,
        initial=initial_weights(zoo.create(spec, seed=1)),
        public=PUBLIC,
        device=device,
        manifest=lambda structure: builder.build(structure).manifest,
    )
    method = entry.make(replace(entry.params(), **SHORT.get(name, {})), known)
    for number in (1, 2):
        play_round(method, number)
        method.restore(method.state())
    return method.model_of("a")[1]


def play_round(method: Method, number: int) -> None:
    """Every device moves its weights a little; what is passed on is done too."""
    data = {
        device: DataSummary(24, 8, list(SHAPE), CLASSES, class_counts=counts, descriptor=[c / 24 for c in counts])
        for device, counts in COUNTS.items()
    }
    todo: list[tuple[str, Assignment]] = sorted(
        method.assign({device: report(data=summary) for device, summary in data.items()}, number).items()
    )
    while todo:
        device, assignment = todo.pop(0)
        emission = method.emit(device, assignment)
        moved = {key: np.full_like(value, 0.05) for key, value in emission.weights.items()}
        if assignment.returns.weights == "weights":
            moved = {key: value + moved[key] for key, value in emission.weights.items()}
        relay = method.absorb(device, CheckedUpdate(moved, STATS, assignment))
        todo += [] if relay is None else [(relay.device, relay.assignment)]
        todo += [] if todo else [(one.device, one.assignment) for one in method.pass_on()]
    method.advance()


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_method_ends_with_the_same_model_on_cuda(name: str) -> None:
    builder = Builder()
    here = played(name, "cpu", builder)
    with pretended_cuda() as memory:
        there = played(name, "cuda", builder)

    assert {key: value.tobytes() for key, value in there.items()} == {k: value.tobytes() for k, value in here.items()}
    assert bool(memory.count) == (name in ON_TORCH)


def test_what_a_real_device_refuses_is_refused() -> None:
    with pretended_cuda():
        there, here = torch.zeros(3, device="cuda"), torch.from_numpy(np.ones(3, np.float32))

        assert (there.device.type, (there + here.to("cuda")).device.type, there.cpu().device.type) == (
            "cuda",
            "cuda",
            "cpu",
        )
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            there + here
        with pytest.raises(TypeError, match="can't convert cuda"):
            there.numpy()
        with pytest.raises(TypeError, match="can't convert cuda"):
            np.asarray(there)
        with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator"):
            torch.randn(3, generator=torch.Generator(), device="cuda")
