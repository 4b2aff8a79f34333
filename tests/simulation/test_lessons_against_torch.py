"""Whole simulated runs of methods that learn of one another's logits beside the same methods written with torch."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fedwright.simulation import datasets
from fedwright.simulation.datasets import Limit
from helpers.by_torch import DATA, ROUNDS, Rows, Weights, assert_model, begin, cross_entropy, logits, run, trained

Public = tuple[Tensor, Tensor]


def public_rows(folder: Path) -> tuple[Path, Public]:
    """Forty digits that no device has."""
    found = datasets.load("digits", limit=Limit(train=440, test=1))
    x, y, path = found.x_train[400:], found.y_train[400:], folder / "public.npz"
    np.savez(path, x=x, y=y)
    return path, (torch.from_numpy(x).double().flatten(1), torch.from_numpy(y))


def said(models: dict[str, Weights], x: Tensor) -> Tensor:
    """The mean logits of all models."""
    return torch.stack([logits(w, x) for w in models.values()]).mean(0).detach()


def test_fedmd(tmp_path: Path) -> None:
    path, public = public_rows(tmp_path)
    models, common = {device: begin() for device in DATA}, torch.zeros(0)
    for number in range(ROUNDS):

        def agree(own: Weights, data: Rows, wanted: Tensor = common) -> Tensor:
            return (logits(own, data[0]) - wanted).abs().mean()

        for device, data in DATA.items():
            own = models[device]
            own = trained(own, public, agree, epochs=2) if number else trained(own, public, epochs=4)
            models[device] = trained(own, data)
        common = said(models, public[0])

    method = run(tmp_path, "fedmd", settings={"transfer_epochs": 4, "digest_epochs": 2}, public={"file": str(path)})
    for device, wanted in models.items():
        assert_model(method, wanted, device)


def test_fccl(tmp_path: Path) -> None:
    """Correlation with what all say of public rows, then own rows with the lesson of the model before them."""
    path, public = public_rows(tmp_path)
    models, common = {device: begin() for device in DATA}, torch.zeros(0)
    beside = (1 - torch.eye(10)).bool()
    for number in range(ROUNDS):

        def agree(own: Weights, data: Rows, wanted: Tensor = common) -> Tensor:
            columns = torch.corrcoef(torch.cat([logits(own, data[0]).T, wanted.T]))[:10, 10:]
            return 0.3 * (((1 - columns.diagonal()) ** 2).sum() + 0.02 * ((1 + columns[beside]) ** 2).sum())

        for device, data in DATA.items():
            own = trained(models[device], public, agree, epochs=2) if number else models[device]
            taught = functional.log_softmax(logits(own, data[0]) / 2.0, -1)

            def learn(w: Weights, data: Rows, taught: Tensor = taught) -> Tensor:
                now = functional.log_softmax(logits(w, data[0]) / 2.0, -1)
                lesson = functional.kl_div(now, taught, reduction="batchmean", log_target=True)
                return cross_entropy(w, data) + 0.7 * 4 * lesson

            models[device] = trained(own, data, learn)
        common = said(models, public[0])

    settings = {"digest_epochs": 2, "agree": 0.3, "apart": 0.02, "lesson": 0.7, "temperature": 2.0}
    method = run(tmp_path, "fccl", settings=settings, public={"file": str(path)})
    for device, wanted in models.items():
        assert_model(method, wanted, device)
