"""A device's own model of a FedConv run over a broker: what it had after its training is evaluated and exported."""

from pathlib import Path

import numpy as np
import onnxruntime as ort
import torch

from fedwright.protocol import tensors
from fedwright.protocol.blobs import BlobStore
from fedwright.protocol.link.memory import MemoryBroker
from fedwright.server_runtime import run as runs
from fedwright.server_runtime import zoo
from fedwright.server_runtime.rounds.store.base import Position, evaluation_after
from fedwright.server_runtime.rounds.store.sqlite import SqliteRoundStore
from fedwright.server_runtime.run_model import export_device
from fedwright.simulation.dealing import deal
from helpers.present import present
from helpers.simulation import local_data, make_config, public_file, run_agents

METHOD = {
    "name": "fedconv",
    "levels": {"sizes": [0.5, 1.0], "choose": "in_turn"},
    **dict.fromkeys(("pretrain_epochs", "compress_epochs", "again_epochs", "dilate_epochs", "weigh_epochs"), 1),
}


def test_the_model_after_own_training_is_evaluated_and_exported(tmp_path: Path) -> None:
    config, text = make_config(
        tmp_path,
        rounds=1,
        method=METHOD,
        public=public_file(tmp_path),
        train={"batch": 16, "learning_rate": 0.1, "epochs": 3},
        fleet={"devices": 2},
        simulate={"devices": 2, "evaluate_every": 0},
    )
    data = local_data(deal(config.simulate, seed=config.run.seed))
    broker = MemoryBroker()
    with run_agents(broker, tmp_path / "devices", data):
        link = broker.link("server")
        runs.execute(config, text, link=link)
        link.close()
    store = SqliteRoundStore(tmp_path / "run/rounds.sqlite")
    plan, replies = store.plan(Position(1, 0)), store.replies(Position(1, 0))
    closing = evaluation_after(1)
    measured = {one.device: store.replies(closing)[one.task.task].update for one in present(store.plan(closing))}
    state = tensors.load(BlobStore(tmp_path / "run/blobs").path(store.closed()[-1].state))
    store.close()
    for planned in present(plan):
        update = replies[planned.task.task].update
        # As the device itself found it after its training.
        assert present(measured[planned.device]).stats.correct_before == present(update).stats.correct_after
        export_device(config, planned.device, tmp_path / "model.onnx")
        own = data[planned.device]
        said = ort.InferenceSession(tmp_path / "model.onnx").run(None, {"x": own.x_holdout})[0]
        assert int((said.argmax(1) == own.y_holdout).sum()) == present(update).stats.correct_after
        module = zoo.create(planned.assignment.structure.spec, seed=0).eval()
        prefix = f"own/{planned.device}/"
        kept = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
        module.load_state_dict({name: torch.from_numpy(value) for name, value in kept.items()})
        with torch.no_grad():
            np.testing.assert_allclose(module(torch.from_numpy(own.x_holdout)).numpy(), said, atol=1e-4)
