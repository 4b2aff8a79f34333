"""Numbers of the pFedClub paper and its code."""

import math

import pytest
import torch

from fedwright.server_runtime import zoo
from fedwright.server_runtime.blocks.pfedclub import similarity
from fedwright.server_runtime.blocks.pfedclub.stitching import BlockShape, stitch_parameters
from fedwright.server_runtime.methods.params.personal_models import PFedClubParams, PFedHRParams
from fedwright.server_runtime.spec import ModelSpec
from fedwright.server_runtime.zoo.stitched import cut

CIFAR = (3, 32, 32)


def parts(name: str) -> tuple[BlockShape, ...]:
    return cut(zoo.create(ModelSpec(name, CIFAR, 10), seed=0), CIFAR).parts


def test_the_cnns_are_those_of_the_code() -> None:
    # 10 and 64 channels, 1600 -> 50 -> classes
    cnn1 = parts("cnn1")
    assert [part.gives for part in cnn1] == [(10, 14, 14), (64, 5, 5), (50,), (10,)]
    assert math.prod(cnn1[2].takes) == 1600
    # 32, 64, 128, 128, 256, 256 channels, 4096 - 1024 - 512 - classes
    cnn4 = parts("cnn4")
    assert [part.gives[0] for part in cnn4] == [32, 64, 128, 128, 256, 256, 1024, 512, 10]
    assert math.prod(cnn4[6].takes) == 4096


def test_cnn2_adds_a_convolution_and_cnn3_has_five_and_four() -> None:
    assert len(parts("cnn2")) == len(parts("cnn1")) + 1
    cnn3 = parts("cnn3")
    assert [part.flat for part in cnn3] == [False] * 5 + [True] * 4


def test_a_dense_stitch_of_an_image_would_have_millions_of_weights() -> None:
    # 3x32x32 to the 3x32x32 that a first convolution takes; ours, even to the second block, is a 1x1 convolution
    assert math.prod(CIFAR) ** 2 == pytest.approx(9.4e6, rel=0.01)
    second = parts("cnn1")[1]
    assert stitch_parameters(CIFAR, second) == (3 + 1) * 10


def test_sixty_four_samples_give_vectors_of_8192_numbers() -> None:
    rows = torch.rand(64, 3)
    u = similarity.embed([[rows, rows.square()]])
    assert u.shape == (1, 8192)
    assert float(u.square().sum()) == pytest.approx(2.0, abs=1e-4)


def test_similarity_lies_between_zero_and_two() -> None:
    rows = [torch.rand(64, 4, generator=torch.Generator().manual_seed(s)) for s in range(6)]
    sim = similarity.similarities(similarity.embed([[rows[0], rows[1], rows[2]], [rows[3], rows[4], rows[5]]]))
    assert float(sim.min()) >= 0
    torch.testing.assert_close(sim.diagonal(), torch.full((4,), 2.0), rtol=1e-4, atol=1e-4)


def test_defaults_are_the_papers() -> None:
    params = PFedClubParams()
    assert (params.groups, params.distill, params.temperature) == (4, 0.2, 0.07)
    assert (params.tune_epochs, params.tune_rate, params.completion) == (3, 0.001, True)
    other = PFedHRParams()
    assert (other.groups, other.candidates, other.least, other.longest, other.tune_epochs) == (4, 4, 4, 6, 3)
