"""The choice of a torch device, and how arrays go there."""

import numpy as np
import pytest
import torch

from fedwright.protocol.errors import ConfigError
from fedwright.server_runtime.blocks import torch_device


def test_a_gpu_is_taken_when_it_is_there_and_asked_for_in_vain_when_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert torch_device.choose_device("auto") == "cpu"
    with pytest.raises(ConfigError, match="torch finds no CUDA device; use 'auto' or 'cpu'"):
        torch_device.choose_device("cuda")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert [torch_device.choose_device(wanted) for wanted in ("auto", "cpu", "cuda")] == ["cuda", "cpu", "cuda"]


def test_arrays_go_to_a_gpu_through_pinned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, ...]] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)

    def pin(tensor: torch.Tensor) -> torch.Tensor:
        asked.append(("pinned",))
        return tensor

    def go(tensor: torch.Tensor, *where: object, **how: object) -> torch.Tensor:
        asked.append((*where, how))
        return tensor

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    monkeypatch.setattr(torch.Tensor, "to", go)

    torch_device.on_device(np.arange(3), "cuda")

    assert asked == [("pinned",), ("cuda", {"non_blocking": True})]


def test_a_limit_of_memory_is_for_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", asked.append)

    torch_device.limit_memory("cpu", 0.5)
    torch_device.limit_memory("cuda", 0.5)

    assert asked == [0.5]
