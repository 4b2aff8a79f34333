"""The task that both systems get: the same LeNet, first weights, data, batches and steps."""

import socket
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedwright.benchmarks.peers.flower_app.model import lenet
from fedwright.device_runtime.train.loop import epoch_order
from fedwright.server_runtime import zoo
from fedwright.server_runtime.seeds import derive_seed
from fedwright.server_runtime.spec import ModelSpec
from fedwright.simulation import datasets
from fedwright.simulation.partition import Split, by_iid

# 64,102 numbers: about the size at which peers are usually measured.
SPEC = ModelSpec("lenet-valid", (3, 32, 32), 10)
SEED = 1
HOLDOUT = 400


@dataclass(frozen=True)
class Scene:
    """A folder with the data of every device and the recipe."""

    folder: Path
    devices: int
    rounds: int
    epochs: int = 4
    batch: int = 16
    learning_rate: float = 0.05

    @property
    def names(self) -> list[str]:
        """Ids of the devices."""
        return [f"d{number}" for number in range(self.devices)]

    @property
    def holdout(self) -> Path:
        """What the trained model is measured with."""
        return self.folder / "holdout.npz"

    @property
    def initial(self) -> Path:
        """First weights, under the names of the plain module."""
        return self.folder / "initial.npz"

    def data(self, device: str) -> Path:
        """Samples of a device, and the order in which every round and epoch visits them."""
        return self.folder / f"{device}.npz"


@dataclass(frozen=True)
class PeerResult:
    """What one system needed. marks: when each round ended, from the start of the server on."""

    marks_s: list[float]
    device_cpu_s: float
    device_rss_mb: float
    up_mb: float
    down_mb: float
    accuracy: float

    @property
    def round_s(self) -> float:
        """Seconds of the fastest round after the first."""
        return float(np.diff(self.marks_s).min())


def prepare(scene: Scene) -> None:
    """Write the data, their orders and the first weights."""
    x, y = _images()
    np.savez(scene.holdout, x=x[:HOLDOUT], y=y[:HOLDOUT])
    x, y = x[HOLDOUT:], y[HOLDOUT:]
    shares = by_iid(len(y), scene.devices, rng=np.random.default_rng(SEED), split=Split(test=0.0))
    for device, share in zip(scene.names, shares.values(), strict=True):
        orders = np.array([_orders(scene, device, number, len(share.train)) for number in range(1, scene.rounds + 1)])
        own = x[share.train], y[share.train]
        # What is held out is of no use here, but an agent would hold out a fifth by itself.
        np.savez(scene.data(device), x=own[0], y=own[1], x_holdout=own[0][:1], y_holdout=own[1][:1], orders=orders)
    first = zoo.create(SPEC, seed=derive_seed(SEED, "initial weights")).state_dict().values()
    named = {name: value.numpy() for name, value in zip(lenet().state_dict(), first, strict=True)}
    np.savez(scene.initial, allow_pickle=False, **named)


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _images() -> tuple[np.ndarray, np.ndarray]:
    """The digits, four times as large and in three equal colours, shuffled."""
    data = datasets.load("digits")
    x = np.concatenate([data.x_train, data.x_test]).repeat(4, axis=2).repeat(4, axis=3).repeat(3, axis=1)
    y = np.concatenate([data.y_train, data.y_test]).astype(np.int64)
    rows = np.random.default_rng(SEED).permutation(len(y))
    return x[rows], y[rows]


def _orders(scene: Scene, device: str, number: int, samples: int) -> np.ndarray:
    """[epochs, samples]: the order that FedAvg of this package gives a device in a round."""
    seed = derive_seed(SEED, "data order", number, device)
    return np.array([epoch_order(seed, epoch, samples) for epoch in range(scene.epochs)])
