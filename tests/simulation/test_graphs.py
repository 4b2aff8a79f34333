"""Graphs in a simulation: Cora's place taken by four rings, dealt by METIS, trained as devices train them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedwright.device_runtime.data.local import LocalData
from fedwright.device_runtime.run_task import Tools, run_task
from fedwright.device_runtime.store.checkpoint import Checkpoint
from fedwright.device_runtime.store.personal_layers import PersonalLayers
from fedwright.device_runtime.task_inputs import Inputs
from fedwright.device_runtime.train.check import check_artifact
from fedwright.device_runtime.train.portable import PortableTrainer
from fedwright.protocol import artifact as artifacts
from fedwright.protocol import tensors
from fedwright.protocol.blobs import make_ref
from fedwright.protocol.errors import ConfigError, DataError
from fedwright.protocol.messages import Recipe, Returns, Task
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.builder import Builder
from fedwright.server_runtime.config import config_from_dict
from fedwright.server_runtime.config_sections.simulate import SimulateSection
from fedwright.server_runtime.spec import ModelSpec, Structure
from fedwright.simulation.dealing import Dealt, deal, local_data
from fedwright.simulation.simulate import simulate
from helpers.rings import save_rings

SPEC = ModelSpec("gcn4", (6,), 7, (("conv1", 8), ("conv2", 8), ("conv3", 8), ("conv4", 8)))


@pytest.fixture
def rings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Dealt:
    """Four rings of ten papers, each about one subject."""
    save_rings(tmp_path)
    monkeypatch.setenv("FEDWRIGHT_DATA", str(tmp_path))
    section = SimulateSection(dataset="cora", partition="metis", devices=4, val_ratio=0.2)
    return deal(section, seed=1)


def weights_of(model: nn.Module) -> dict[str, Any]:
    return {name: value.detach().numpy().copy() for name, value in model.state_dict().items()}


def after_two_steps(data: LocalData) -> dict[str, Any]:
    """What torch makes of the training nodes and the edges between them in two plain steps."""
    assert data.edges is not None
    inner = data.edges[(data.edges < len(data.y)).all(axis=1)]
    model = zoo.create(SPEC, seed=3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        logits = model(torch.tensor(data.x), torch.tensor(inner))
        nn.functional.cross_entropy(logits, torch.tensor(data.y)).backward()
        optimizer.step()
    return weights_of(model)


def test_pieces_are_disjoint_and_keep_their_own_edges(rings: Dealt) -> None:
    assert sorted(np.concatenate([share.rows for share in rings.shares.values()]).tolist()) == list(range(40))
    for device in rings.shares:
        data = local_data(rings, device)
        nodes = np.concatenate([data.x, data.x_holdout])
        assert data.edges is not None
        assert data.edges.max(initial=0) < len(nodes)
        # Both ends of an edge are in one ring, which is what the features say.
        assert (nodes[data.edges[:, 0]] == nodes[data.edges[:, 1]]).all()


@pytest.mark.parametrize("method", ["framp", "heterofl"])
def test_a_simulation_learns_from_pieces_of_a_graph(tmp_path: Path, rings: Dealt, method: str) -> None:
    every: dict[str, dict[str, Any]] = {
        "framp": {"sizes": [1.0, 0.5]},
        "heterofl": {"levels": {"sizes": [1.0, 0.5]}},
    }
    data = {
        "run": {"name": "graph", "rounds": 3, "seed": 1, "folder": str(tmp_path / "run")},
        "model": {"model": "gcn4"},
        "train": {"learning_rate": 0.1, "batch": 64, "steps": 5},
        "simulate": {
            "dataset": "cora",
            "partition": "metis",
            "devices": 4,
            "bystanders": 1,
            "val_ratio": 0.2,
            "evaluate_every": 3,
            "processes": 0,
        },
        "method": {"name": method, **every[method]},
    }
    found = simulate(config_from_dict(data, where="test"), "", parts=("val", "test", "test after"))
    assert [entry.part for entry in found.evaluations] == ["val", "test", "test after"]
    assert all(device.n for entry in found.evaluations for device in entry.devices)
    # Every piece is about one subject, so that own training is all it takes to know a held-out node.
    last = found.evaluations[-1]
    assert sum(device.correct for device in last.devices) >= 0.75 * sum(device.n for device in last.devices)


def test_a_task_of_a_graph_passes_a_devices_own_check_and_equals_torch(tmp_path: Path, rings: Dealt) -> None:
    built, start = Builder().build(Structure(SPEC)), weights_of(zoo.create(SPEC, seed=3))
    check_artifact(built, batch=64)
    data = local_data(rings, next(iter(rings.shares)))
    (tmp_path / "a").write_bytes(artifacts.pack(built))
    (tmp_path / "w").write_bytes(tensors.save(start))
    task = Task(
        task="t",
        boot="b",
        run="r",
        round=1,
        artifact=make_ref((tmp_path / "a").read_bytes(), inline=False),
        weights=make_ref((tmp_path / "w").read_bytes(), inline=False),
        recipe=Recipe(batch=64, learning_rate=0.1, seed=1, steps=2),
        returns=Returns(weights="weights", evaluate=True, class_means=True),
        deadline_s=60.0,
    )
    asked: list[int] = []
    tools = Tools(
        lambda artifact, sides, frozen: PortableTrainer(artifact, sides=sides, frozen=frozen),
        lambda artifact, recipe: asked.append(recipe.batch),
        Checkpoint(tmp_path / "checkpoint", every_s=1e9),
        PersonalLayers(tmp_path),
    )
    result = run_task(task, Inputs(tmp_path / "a", tmp_path / "w"), data, tools=tools, should_stop=lambda: False)
    assert result.stats.steps == 2
    assert result.stats.holdout == len(data.y_holdout)
    assert asked == [64]
    for name, value in after_two_steps(data).items():
        np.testing.assert_allclose(result.tensors[name], value, rtol=1e-4, atol=1e-5)


def test_metis_needs_a_graph_and_a_graph_model_edges(rings: Dealt) -> None:
    with pytest.raises(ConfigError, match="'metis' cuts a graph"):
        deal(SimulateSection(partition="metis"), seed=1)
    built = Builder().build(Structure(SPEC))
    trainer = PortableTrainer(built)
    with pytest.raises(DataError, match=r"use graph:file\.npz"):
        trainer.predict({"x": np.zeros((2, 6), np.float32)})


def test_nodes_without_edges_are_predicted(rings: Dealt) -> None:
    trainer = PortableTrainer(Builder().build(Structure(SPEC)))
    trainer.load(weights_of(zoo.create(SPEC, seed=3)))
    alone = {"x": rings.x[:2], "edges": np.empty((0, 2), np.int64), "y": rings.y[:2]}
    assert trainer.predict(alone)[0].shape == (2, 7)
    assert np.isfinite(trainer.step(alone, learning_rate=0.1, seed=1).loss)
