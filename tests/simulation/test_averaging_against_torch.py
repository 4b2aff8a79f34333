"""Whole simulated runs of methods that average whole models beside the same methods written with torch."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from helpers.by_torch import (
    DATA,
    DEVICES,
    EPOCHS,
    HEAD,
    HEAD_BIAS,
    RATE,
    ROUNDS,
    Rows,
    Weights,
    assert_model,
    begin,
    cross_entropy,
    gradient,
    mean,
    run,
    stepped,
    trained,
)


def like(w: Weights, value: float = 0.0) -> Weights:
    return {name: torch.full_like(entry, value) for name, entry in w.items()}


def mean_change(w: Weights) -> Weights:
    after = mean({d: trained(w, data) for d, data in DATA.items()}, by_samples=True)
    return {name: after[name] - value for name, value in w.items()}


def test_fedavg_with_momentum_on_devices(tmp_path: Path) -> None:
    w = begin()
    for _ in range(ROUNDS):
        w = mean({d: trained(w, data, momentum=0.5) for d, data in DATA.items()}, by_samples=True)

    assert_model(run(tmp_path, "fedavg", momentum=0.5), w)


def test_fedprox(tmp_path: Path) -> None:
    w = begin()
    for _ in range(ROUNDS):

        def near(own: Weights, data: Rows, centre: Weights = w) -> Tensor:
            away = torch.stack([((own[name] - centre[name]) ** 2).sum() for name in own])
            return cross_entropy(own, data) + 0.8 / 2 * away.sum()

        w = mean({d: trained(w, data, near) for d, data in DATA.items()}, by_samples=True)

    assert_model(run(tmp_path, "fedprox", settings={"mu": 0.8}), w)


def test_fedavgm(tmp_path: Path) -> None:
    w = begin()
    speed = like(w)
    for _ in range(ROUNDS):
        change = mean_change(w)
        speed = {name: 0.7 * value + change[name] for name, value in speed.items()}
        w = stepped(w, speed, -0.6)

    assert_model(run(tmp_path, "fedavgm", settings={"momentum": 0.7, "server_rate": 0.6}), w)


@pytest.mark.parametrize("name", ["fedadam", "fedyogi"])
def test_adaptive_servers(tmp_path: Path, name: str) -> None:
    w = begin()
    first, second = like(w), like(w, 0.01**2)
    for _ in range(ROUNDS):
        change = mean_change(w)
        first = {n: 0.8 * m + 0.2 * change[n] for n, m in first.items()}
        for n, v in second.items():
            square = change[n] ** 2
            second[n] = 0.9 * v + 0.1 * square if name == "fedadam" else v - 0.1 * square * (v - square).sign()
        w = {n: value + 0.05 * first[n] / (second[n].sqrt() + 0.01) for n, value in w.items()}

    settings = {"server_rate": 0.05, "beta1": 0.8, "beta2": 0.9, "tau": 0.01}
    assert_model(run(tmp_path, name, settings=settings), w)


def test_scaffold(tmp_path: Path) -> None:
    """Algorithm 1 with option II, all devices in every round."""
    x = begin()
    c, own = like(x), {device: like(x) for device in DEVICES}
    for _ in range(ROUNDS):
        ends, after = {}, {}
        for device, data in DATA.items():
            y, c_i = x, own[device]
            for _ in range(EPOCHS):
                grad = gradient(y, data)
                y = stepped(y, {name: grad[name] - c_i[name] + c[name] for name in y}, RATE)
            ends[device] = y
            after[device] = {n: c_i[n] - c[n] + (x[n] - y[n]) / (EPOCHS * RATE) for n in x}
        x = {n: value + 0.9 * (mean(ends, by_samples=False)[n] - value) for n, value in x.items()}
        moved = mean({d: {n: after[d][n] - own[d][n] for n in x} for d in DEVICES}, by_samples=False)
        c, own = {n: value + moved[n] for n, value in c.items()}, after

    assert_model(run(tmp_path, "scaffold", momentum=0.9, settings={"server_rate": 0.9}), x)


def test_per_fedavg(tmp_path: Path) -> None:
    w = begin()
    for _ in range(ROUNDS):
        ends = {}
        for device, data in DATA.items():
            own = w
            for _ in range(EPOCHS // 2):
                own = stepped(own, gradient(stepped(own, gradient(own, data), 0.3), data), RATE)
            ends[device] = own
        w = mean(ends, by_samples=False)

    assert_model(run(tmp_path, "per-fedavg", settings={"inner_rate": 0.3}), w)


def test_pfedme(tmp_path: Path) -> None:
    w, strength, rate = begin(), 2.0, 0.25
    for _ in range(ROUNDS):
        ends = {}
        for device, data in DATA.items():
            theta = w
            for _ in range(2):
                grad = gradient(theta, data)
                theta = stepped(theta, {n: grad[n] + strength * (theta[n] - w[n]) for n in w}, RATE)
            ends[device] = stepped(w, {n: w[n] - theta[n] for n in w}, rate * strength)
        after = mean(ends, by_samples=False)
        w = {n: 0.2 * value + 0.8 * after[n] for n, value in w.items()}

    settings = {"strength": strength, "inner_steps": 2, "rate": rate, "mixing": 0.8}
    assert_model(run(tmp_path, "pfedme", settings=settings), w)


@pytest.mark.parametrize("name", ["head-private", "encoder-private"])
def test_private_layers_go_on_from_round_to_round(tmp_path: Path, name: str) -> None:
    head = {HEAD, HEAD_BIAS}
    private = head if name == "head-private" else set(begin()) - head
    w = begin()
    kept = {device: {n: w[n] for n in private} for device in DEVICES}
    for _ in range(ROUNDS):
        ends = {device: trained({**w, **kept[device]}, data) for device, data in DATA.items()}
        kept = {device: {n: own[n] for n in private} for device, own in ends.items()}
        w = {**mean(ends, by_samples=True), **{n: begin()[n] for n in private}}

    found = run(tmp_path, name).model_of("")[1]
    for n, value in w.items():
        torch.testing.assert_close(torch.from_numpy(found[n]).double(), value, atol=2e-5, rtol=0, msg=n)
