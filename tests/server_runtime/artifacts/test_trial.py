"""Modules that no single graph can follow, or that do not run, are refused in a sentence that names the layer."""

import pytest
import torch
from torch import nn

from fedwright.protocol.errors import BuildError
from fedwright.server_runtime.artifacts.builder import build
from helpers.graphs import structure_of


class Branching(nn.Module):
    """Takes another way for positive sums."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x or -x."""
        return x if x.sum() > 0 else -x


class Counting(nn.Module):
    """Works with a number that Python reads of the data."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x by its largest entry."""
        return x / (1.0 + float(x.detach().abs().max()))


class Checking(nn.Module):
    """Asks for a value of the data that is the same for all of them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x."""
        if torch.isnan(x).any() or x.shape[1] != 4:
            raise ValueError("no numbers")
        return x


class Failing(nn.Module):
    """Raises what no list of errors foresees but the widest."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Nothing."""
        raise KeyError("seven")


def _with(layer: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), layer, nn.Linear(4, 3))


@pytest.mark.parametrize("layer", [Branching(), Counting()], ids=["a branch", "a number"])
def test_what_depends_on_the_data_is_refused_with_its_layer(layer: nn.Module) -> None:
    kind = type(layer).__name__
    with pytest.raises(BuildError, match=rf"layer 1 \({kind}\) asks for a value of a tensor that depends on the data"):
        build(structure_of((4,), 3), _with(layer))


def test_a_question_that_all_data_answer_alike_is_no_fault() -> None:
    assert build(structure_of((4,), 3), _with(Checking())).train


def test_a_layer_that_fails_is_named() -> None:
    with pytest.raises(BuildError, match=r"layer 1 \(Failing\) does not run with a batch of shape \(2, 4\): 'seven'"):
        build(structure_of((4,), 3), _with(Failing()))


def test_weights_that_are_no_numbers_are_refused_by_name() -> None:
    module = _with(nn.ReLU())
    with torch.no_grad():
        module[2].weight[0, 0] = float("nan")  # type: ignore[index]

    with pytest.raises(BuildError, match=r"parameter 2\.weight of .* holds NaN or infinity"):
        build(structure_of((4,), 3), module)
