"""Stitches fitted and tuned: only they move, together as alone, and the loss without labels is the paper's."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from fedwright.server_runtime.blocks.fedconv.contrastive_views import nt_xent, view
from fedwright.server_runtime.blocks.pfedclub.stitch_tuning import (
    Beginnings,
    Candidate,
    Tuning,
    agreement,
    logits_of,
    match,
    refresh_norms,
    ridge,
    tune,
)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def candidate(seed: int, *, keys: tuple[str, str, str] = ("a", "b", "c")) -> Candidate:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        blocks = nn.ModuleList(
            [
                nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU()),
                nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU()),
                nn.Linear(8, 3),
            ]
        )
        stitch = nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU())
        return Candidate(nn.ModuleList([nn.Identity(), stitch, nn.Identity()]), blocks, keys)


X = torch.rand(30, 1, 6, 6, generator=generator(1))
Y = torch.arange(30) % 3


def snapshot(module: nn.Module) -> list[torch.Tensor]:
    return [value.detach().clone() for value in module.state_dict().values()]


@pytest.mark.parametrize("labels", [Y, None], ids=["labelled", "unlabelled"])
def test_only_stitches_are_tuned(labels: torch.Tensor | None) -> None:
    own = candidate(2)
    refresh_norms(own, X)
    blocks, stitches = snapshot(own.blocks), snapshot(own.stitches)
    tune([own], Beginnings(X), labels, Tuning(epochs=2, rate=0.01, batch=8), seed=0)
    assert all(torch.equal(a, b) for a, b in zip(blocks, snapshot(own.blocks), strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(stitches, snapshot(own.stitches), strict=True))
    assert not any(value.requires_grad for value in own.stitches.parameters())


def test_everything_is_tuned_when_asked_for() -> None:
    own = candidate(2)
    before = snapshot(own.blocks[2])
    tune([own], Beginnings(X), Y, Tuning(epochs=1, rate=0.01, everything=True), seed=0)
    assert not torch.equal(before[0], snapshot(own.blocks[2])[0])


def test_candidates_tuned_together_come_out_as_if_alone() -> None:
    together = [candidate(2), candidate(3, keys=("d", "e", "f"))]
    alone = candidate(3, keys=("d", "e", "f"))
    for own in (*together, alone):
        refresh_norms(own, X)
    tune(together, Beginnings(X), Y, Tuning(epochs=2, batch=8), seed=5)
    tune([alone], Beginnings(X), Y, Tuning(epochs=2, batch=8), seed=5)
    said = [logits_of(own, Beginnings(X)) for own in (together[1], alone)]
    torch.testing.assert_close(*said, rtol=1e-4, atol=1e-5)


def test_equal_beginnings_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []
    plain = Candidate.run

    def counted(self: Candidate, x: torch.Tensor, start: int = 0, end: int | None = None) -> torch.Tensor:
        ran.append((start, end))
        return plain(self, x, start, end)

    monkeypatch.setattr(Candidate, "run", counted)
    both, begun = [candidate(2), candidate(2)], Beginnings(X)
    for own in both:
        refresh_norms(own, X)
    ran.clear()
    tune(both, begun, Y, Tuning(epochs=3, batch=30), seed=0)
    assert ran.count((0, 1)) == 1
    assert ran.count((1, None)) == 6
    # What is asked of the tuned candidates begins where their tuning began.
    said = [logits_of(own, begun) for own in both]
    assert ran.count((0, 1)) == 1
    torch.testing.assert_close(said[0], plain(both[0], X))


def test_norms_are_those_of_what_reaches_them_now() -> None:
    own = candidate(4)
    refresh_norms(own, 5.0 + X)
    block: Any = own.blocks[0]
    norm, conv = block[1], block[0]
    with torch.no_grad():
        made = conv(5.0 + X)
    torch.testing.assert_close(norm.running_mean, made.mean((0, 2, 3)), rtol=1e-4, atol=1e-4)
    assert norm.momentum == 0.1
    assert not norm.training


def test_ridge_finds_a_linear_map_from_few_and_from_many_rows() -> None:
    wanted = torch.randn(5, 3, generator=generator(6), dtype=torch.float64)
    z = torch.randn(400, 5, generator=generator(7), dtype=torch.float64)
    torch.testing.assert_close(ridge(z, z @ wanted), wanted, rtol=0.02, atol=0.02)
    few = torch.randn(3, 5, generator=generator(8), dtype=torch.float64)
    torch.testing.assert_close(few @ ridge(few, few @ wanted), few @ wanted, rtol=0.05, atol=0.05)


def test_a_fitted_stitch_undoes_what_stands_before_its_block() -> None:
    plain, mixed = candidate(9), candidate(9)
    taken: dict[Any, torch.Tensor] = {"a": X, "b": plain.blocks[0].eval()(X).detach()}
    taken["c"] = plain.blocks[1](taken["b"]).detach()
    own = plain.blocks[2](taken["c"]).detach()
    # The first block gives other channels, doubled; a 1×1 convolution can put them right.
    order = torch.tensor([2, 0, 3, 1])
    block: Any = mixed.blocks[0]
    with torch.no_grad():
        norm = block[1].eval()
        norm.weight.copy_(2 * norm.weight[order])
        block[0].weight.copy_(block[0].weight[order])
        block[0].bias.copy_(block[0].bias[order])
    refresh_norms(Candidate(plain.stitches, plain.blocks, plain.keys), X)
    before = agreement(own, logits_of(mixed, Beginnings(X)))
    fitted = match([mixed], X, taken.__getitem__)[0]
    torch.testing.assert_close(fitted, logits_of(mixed, Beginnings(X)))
    assert agreement(own, fitted) > max(0.98, before)


def test_nt_xent_is_the_formula_of_the_paper() -> None:
    one, other = torch.randn(3, 4, generator=generator(10)), torch.randn(3, 4, generator=generator(11))
    z = [*one, *other]
    total = 0.0
    for i in range(6):
        scores = [math.exp(float(torch.cosine_similarity(z[i], z[k], dim=0)) / 0.07) for k in range(6)]
        total -= math.log(scores[(i + 3) % 6] / (sum(scores) - scores[i]))
    assert float(nt_xent(one, other, 0.07)) == pytest.approx(total / 6, rel=1e-4)


@pytest.mark.parametrize("shape", [(5, 1, 8, 8), (5, 3, 8, 8), (5, 12)])
def test_views_differ_but_keep_their_shape(shape: tuple[int, ...]) -> None:
    x = torch.rand(*shape, generator=generator(12))
    made = view(x, generator(13))
    assert made.shape == x.shape
    assert torch.isfinite(made).all()
    assert not torch.equal(made, x)
    torch.testing.assert_close(made, view(x, generator(13)))


@pytest.mark.parametrize("shape", [(6, 5), (6, 1, 8, 8), (6, 3, 8, 8)], ids=["vector", "grey", "colour"])
def test_views_are_made_where_the_examples_are(shape: tuple[int, ...]) -> None:
    # "meta" has shapes alone, and like any other device takes nothing from the CPU
    assert view(torch.empty(shape, device="meta"), generator(13)).device.type == "meta"
