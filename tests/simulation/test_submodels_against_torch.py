"""Whole simulated runs of methods whose devices train parts of a model beside the same methods written with torch."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fedwright.server_runtime.methods.hasa import Hasa
from helpers.by_torch import (
    B1,
    B2,
    CLASSES,
    DATA,
    DEVICES,
    EPOCHS,
    HEAD,
    HEAD_BIAS,
    RATE,
    ROUNDS,
    SAMPLES,
    W1,
    W2,
    WIDTHS,
    Rows,
    Weights,
    assert_model,
    begin,
    gradient,
    logits,
    run,
    stepped,
    trained,
)

SIZES = (1.0, 0.5, 0.25)
Channels = tuple[Tensor, Tensor]
Places = dict[str, tuple[Tensor, ...]]


def places(kept: Channels, rows: Tensor) -> Places:
    """Where each tensor of a part lies in the whole; rows: of the classifier."""
    one, two = kept
    every = torch.arange(64)
    return {
        W1: torch.meshgrid(one, every, indexing="ij"),
        B1: (one,),
        W2: torch.meshgrid(two, one, indexing="ij"),
        B2: (two,),
        HEAD: torch.meshgrid(rows, two, indexing="ij"),
        HEAD_BIAS: (rows,),
    }


def part(w: Weights, kept: Channels) -> Weights:
    return {name: w[name][at] for name, at in places(kept, torch.arange(CLASSES)).items()}


def average(w: Weights, models: list[tuple[Weights, Places, Places, float]]) -> Weights:
    """Each entry over those that hold it: (model, where its counted entries lie in it, where in the whole, weight)."""
    total = {name: torch.zeros_like(value) for name, value in w.items()}
    count = {name: torch.zeros_like(value) for name, value in w.items()}
    for own, inside, outside, weight in models:
        for name in w:
            total[name][outside[name]] += weight * own[name][inside[name]]
            count[name][outside[name]] += weight
    return {n: torch.where(count[n] > 0, total[n] / count[n].clamp(min=1e-9), value) for n, value in w.items()}


def first(size: float) -> Channels:
    return torch.arange(math.ceil(size * WIDTHS[0])), torch.arange(math.ceil(size * WIDTHS[1]))


def window(size: float, t: int) -> Channels:
    one, two = first(size)
    return (one + t) % WIDTHS[0], (two + t) % WIDTHS[1]


def test_a_run_says_once_that_it_holds_an_honest_change(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The narrowest device has three classes and a scaler of four: its change is longer than the limit allows."""
    held, free = (
        run(tmp_path / word, "heterofl", settings={"levels": {"sizes": SIZES}}, update={"norm_factor": factor})
        for word, factor in (("held", 5.0), ("free", 0.0))
    )

    said = [record.getMessage() for record in caplog.records if "counts in part" in record.getMessage()]
    assert len(said) == 1
    assert "change of device-2" in said[0]
    assert not torch.equal(torch.from_numpy(held.model_of("")[1][W1]), torch.from_numpy(free.model_of("")[1][W1]))


@pytest.mark.parametrize("masked", [True, False], ids=["own classes", "all classes"])
def test_heterofl(tmp_path: Path, masked: bool) -> None:
    w, every = begin(), torch.arange(CLASSES)
    for _ in range(ROUNDS):
        models = []
        for size, (x, y) in zip(SIZES, DATA.values(), strict=True):
            owned = y.unique() if masked else every
            mask = torch.zeros(CLASSES, dtype=torch.float64)
            mask[owned] = 1

            def loss(own: Weights, data: Rows, size: float = size, mask: Tensor = mask) -> Tensor:
                return functional.cross_entropy(logits(own, data[0], size) * mask, data[1])

            kept = first(size)
            own = trained(part(w, kept), (x, y), loss)
            models.append((own, places(first(size), owned), places(kept, owned), 1.0))
        w = average(w, models)

    method = run(tmp_path, "heterofl", settings={"levels": {"sizes": SIZES}, "masked": masked})
    assert_model(method, w)
    for size, device in zip(SIZES, DEVICES, strict=True):
        assert_model(method, part(w, first(size)), device)


def test_fedrolex(tmp_path: Path) -> None:
    w, every = begin(), torch.arange(CLASSES)
    for t in range(ROUNDS):
        models = []
        for size, data in zip(SIZES, DATA.values(), strict=True):
            kept = window(size, t)
            models.append((trained(part(w, kept), data), places(first(size), every), places(kept, every), 1.0))
        w = average(w, models)

    method = run(tmp_path, "fedrolex", settings={"levels": {"sizes": SIZES}})
    assert_model(method, w)
    assert_model(method, part(w, window(0.25, ROUNDS - 1)), DEVICES[2])


@pytest.mark.parametrize("aggregation", ["original", "selective"])
def test_hasa(tmp_path: Path, aggregation: str) -> None:
    """Fixed first channels at the allocated widths; what a device lacks counts as unchanged, or not at all."""
    settings = {"aggregation": aggregation, "budget": 0.6, "least": 0.25, "most": 1.0}
    method = run(tmp_path, "hasa", settings)
    assert isinstance(method, Hasa)
    shares = [method.width_of(device) for device in DEVICES]
    assert len(set(shares)) == len(DEVICES)
    w, every = begin(), torch.arange(CLASSES)
    for _ in range(ROUNDS):
        models = []
        for share, data in zip(shares, DATA.values(), strict=True):
            kept = (torch.arange(int(share * WIDTHS[0])), torch.arange(int(share * WIDTHS[1])))
            own, at = trained(part(w, kept), data), places(kept, every)
            if aggregation == "original":
                own = {n: value.index_put(at[n], own[n]) for n, value in w.items()}
                at = places(first(1.0), every)
            inside = {n: torch.meshgrid(*map(torch.arange, own[n].shape), indexing="ij") for n in own}
            models.append((own, inside, at, float(len(data[1]))))
        w = average(w, models)
    for name, value in w.items():
        np.testing.assert_allclose(method.weights[name], value.numpy(), atol=2e-5, err_msg=name)


def test_fiarse(tmp_path: Path) -> None:
    """The comparison with θ is made again in every step; entries that nobody changed stay."""
    w = begin()
    for _ in range(ROUNDS):
        changes = []
        for size, data in zip(SIZES, DATA.values(), strict=True):
            entries = torch.cat([value.abs().flatten() for value in w.values()])
            theta = entries.topk(round(size * len(entries))).values[-1] if size < 1 else torch.zeros(())
            start = {n: value * (value.abs() >= theta) for n, value in w.items()}
            own = start
            for _ in range(EPOCHS):
                kept = {n: (value.abs() >= theta).double() for n, value in own.items()}
                grad = gradient({n: value * kept[n] for n, value in own.items()}, data)
                extra = {n: 2 * theta * v.abs() / (v.abs() + theta).clamp(min=1e-12) ** 2 for n, v in own.items()}
                own = stepped(own, {n: grad[n] * (1 + extra[n]) * kept[n] for n in own}, RATE)
            changes.append({n: own[n] - start[n] for n in w})
        for n, value in w.items():
            stacked = torch.stack([change[n] for change in changes])
            w[n] = value + stacked.sum(0) / (stacked != 0).sum(0).clamp(min=1)

    found = run(tmp_path, "fiarse", settings={"sizes": SIZES}).model_of("")[1]
    away = torch.cat([(torch.from_numpy(found[n]) - value).abs().flatten() for n, value in w.items()])
    # An entry as large as θ but for its last bit may be kept on one side and not on the other.
    assert int((away > 2e-5).sum()) <= 3
    assert float(away.max()) < 1e-2


def smallest_gone(value: Tensor, mask: Tensor, share: float) -> Tensor:
    """The mask without this share of what it holds, the smallest."""
    kept = int(int(mask.sum()) * (1 - share))
    limit = torch.where(mask, value.abs(), -1.0).flatten().topk(kept).values[-1]
    return mask & (value.abs() >= limit)


def without_smallest(w: Weights, kept: Channels, share: float) -> Channels:
    """The channels of a part without this share of them: those whose entries, in and out, have the least norm."""
    one = (w[W1] ** 2).sum(1) + w[B1] ** 2 + (w[W2] ** 2).sum(0)
    two = (w[W2] ** 2).sum(1) + w[B2] ** 2 + (w[HEAD] ** 2).sum(0)
    first_kept, second_kept = (
        index[squares.topk(int(len(index) * (1 - share))).indices].sort().values
        for index, squares in zip(kept, (one, two), strict=True)
    )
    return first_kept, second_kept


def test_hermes(tmp_path: Path) -> None:
    """Everybody prunes a quarter of the channels after each round; what all have is averaged, the rest stays own."""
    every = torch.arange(CLASSES)
    # Models lie in the whole with zeros where they have nothing.
    models = {d: begin() for d in DEVICES}
    kept = dict.fromkeys(DEVICES, first(1.0))
    for _ in range(ROUNDS):
        for device, data in DATA.items():
            own, before = trained(part(models[device], kept[device]), data), kept[device]
            kept[device] = without_smallest(own, before, 0.25)
            for name, at in places(before, every).items():
                models[device][name] = torch.zeros_like(models[device][name]).index_put(at, own[name])
        held = {d: {n: torch.zeros_like(v) for n, v in models[d].items()} for d in DEVICES}
        for device in DEVICES:
            for name, at in places(kept[device], every).items():
                held[device][name][at] = 1
        for name in models[DEVICES[0]]:
            everywhere = torch.stack([held[d][name] for d in DEVICES]).min(0).values.bool()
            weighed = [n * models[d][name] for n, d in zip(SAMPLES, DEVICES, strict=True)]
            common = torch.stack(weighed).sum(0) / sum(SAMPLES)
            for device in DEVICES:
                models[device][name] = torch.where(everywhere, common, models[device][name])

    settings = {"prune_ratio": 0.25, "least": 0.1, "loss_below": 100.0}
    method = run(tmp_path, "hermes", settings=settings)
    for device in DEVICES:
        assert_model(method, part(models[device], kept[device]), device)


def test_lotteryfl(tmp_path: Path) -> None:
    """Everybody prunes after each round, down to three tenths, and goes on from the initial values."""
    first_w = w = begin()
    matrices = (W1, W2, HEAD)
    masks = {d: {n: torch.ones_like(value, dtype=torch.bool) for n, value in w.items()} for d in DEVICES}
    anew = dict.fromkeys(DEVICES, False)
    for _ in range(ROUNDS):
        total, count = ({n: torch.zeros_like(v) for n, v in w.items()} for _ in range(2))
        for device, data in DATA.items():
            mask, samples = masks[device], float(len(data[1]))
            own = {n: v * mask[n] for n, v in (first_w if anew[device] else w).items()}
            for _ in range(EPOCHS):
                grad = gradient(own, data)
                own = stepped(own, {n: g * mask[n] for n, g in grad.items()}, RATE)
            for n in w:
                total[n] += samples * mask[n] * own[n]
                count[n] += samples * mask[n]
            density = sum(int(mask[n].sum()) for n in matrices) / sum(mask[n].numel() for n in matrices)
            anew[device] = density > 0.3
            if anew[device]:
                masks[device] = {n: smallest_gone(own[n], mask[n], 0.4) if n in matrices else mask[n] for n in w}
        w = {n: torch.where(count[n] > 0, total[n] / count[n].clamp(min=1), value) for n, value in w.items()}

    method = run(tmp_path, "lotteryfl", settings={"prune_ratio": 0.4, "least": 0.3, "loss_below": 100.0})
    assert_model(method, w)


def exits_of(w: Weights, x: Tensor, depth: int) -> list[Tensor]:
    """Logits of the first exits of cnn-exits: convolution, group norm, ReLU, pooling; a linear layer on the means."""
    found, hidden = [], x
    for number in range(1, depth + 1):
        layer = f"encoder.conv{number}"
        hidden = functional.conv2d(hidden, w[f"{layer}.0.weight"], padding=1)
        hidden = functional.group_norm(hidden, 8, w[f"{layer}.1.weight"], w[f"{layer}.1.bias"])
        hidden = functional.max_pool2d(functional.relu(hidden), 2)
        head = f"head.exit{number}"
        found.append(hidden.mean((2, 3)) @ w[f"{head}.weight"].T + w[f"{head}.bias"])
    return found


def exit_weights() -> Weights:
    torch.manual_seed(5)
    found, before = {}, 1
    for number, channels in enumerate((32, 64, 128), start=1):
        found[f"encoder.conv{number}.0.weight"] = torch.randn(channels, before, 3, 3) * (2 / (9 * before)) ** 0.5
        found |= {f"encoder.conv{number}.1.weight": torch.ones(channels)}
        found |= {f"encoder.conv{number}.1.bias": torch.zeros(channels)}
        found |= {f"head.exit{number}.weight": torch.randn(CLASSES, channels) * 0.1}
        found |= {f"head.exit{number}.bias": torch.zeros(CLASSES)}
        before = channels
    return {name: value.double() for name, value in found.items()}


def softened(one: Tensor) -> Tensor:
    return functional.log_softmax(one / 3.0, -1)


def test_scalefl(tmp_path: Path) -> None:
    """Depths of three, two and one exits; from the second round on the last exit teaches the others at T = 3."""
    w = first_w = exit_weights()
    for number in range(1, ROUNDS + 1):
        total, count = ({n: torch.zeros_like(v) for n, v in w.items()} for _ in range(2))
        for depth, data in zip((3, 2, 1), DATA.values(), strict=True):

            def loss(own: Weights, data: Rows, depth: int = depth, teaches: bool = number > 1) -> Tensor:
                outputs, losses = exits_of(own, data[0].reshape(-1, 1, 8, 8), depth), []
                for place, output in enumerate(outputs, start=1):
                    term = functional.cross_entropy(output, data[1])
                    if teaches and place < depth:
                        lesson = functional.kl_div(
                            softened(output), softened(outputs[-1]), reduction="batchmean", log_target=True
                        )
                        term = term + 0.4 * 9 * lesson
                    losses.append(place * term)
                return torch.stack(losses).sum() / (depth * (depth + 1) / 2)

            mine = {n: v for n, v in w.items() if int(n.split(".")[1][-1]) <= depth}
            for name, value in trained(mine, data, loss).items():
                total[name] += value
                count[name] += 1
        w = {name: total[name] / count[name] for name in w}

    settings = {"widths": [1.0, 1.0, 1.0], "exits": [3, 2, 1], "distill": 0.4, "distill_after": 1}
    method = run(tmp_path, "scalefl", settings=settings, weights=first_w, model={"model": "cnn-exits"})
    assert_model(method, w)
