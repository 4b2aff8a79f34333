"""The few lines by which the Python API is known, word for word."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

import fedwright as fw


class MyNet(nn.Module):
    """As somebody writes it who has never heard of us."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 8), nn.ReLU())
        self.head = nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.head(self.body(x))
        return answer


def examples(count: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    y = np.arange(count) % 10
    x = rng.normal(size=(count, 1, 28, 28)).astype(np.float32)
    x[np.arange(count), 0, y, y] += 9
    return x, y


@pytest.mark.timeout(600)
def test_a_hundred_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # The folder in which a program runs is where its modules are looked for; it is taken off again here.
    monkeypatch.syspath_prepend(str(tmp_path))
    x, y = examples(2000)

    run = fw.simulate(method="hasa", model=MyNet, data=fw.Dataset(x, y), devices=100, rounds=20)
    frame, figure, net = run.frame(), run.plot(), run.model("device-07")
    run.export("model.onnx")

    assert len(frame) == 100
    assert frame.loc["device-07"]["samples"] > 0
    assert len(figure.axes) == 2
    assert net(torch.from_numpy(x[:3])).shape == (3, 10)
    session = onnxruntime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
    assert session.run(None, {session.get_inputs()[0].name: x[:3]})[0].shape == (3, 10)
    assert run.accuracy > 0.5


def test_a_graph_and_what_it_costs() -> None:
    x, y = examples(40)

    art = fw.training_graph(MyNet(), input_shape=(1, 28, 28), classes=10)
    trainer = fw.Trainer(art)
    losses = [trainer.step(x, y) for _ in range(20)]
    budget = fw.predict(art, device="raspberry-pi-4")

    assert losses[-1] < losses[0]
    assert trainer.predict(x).shape == (40, 10)
    assert 0 < budget.step_s < 1
    assert budget.memory_mb > 0
