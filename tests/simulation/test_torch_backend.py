"""Simulations on torch: the same runs as on the devices' graphs, but for rounding."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedwright.protocol import tensors
from fedwright.protocol.blobs import BlobStore
from fedwright.protocol.errors import ConfigError
from fedwright.server_runtime.config import RunConfig
from fedwright.server_runtime.rounds import events
from fedwright.server_runtime.rounds.store.sqlite import SqliteRoundStore
from fedwright.simulation.simulate import simulate
from helpers.simulation import make_config

SMALL = {"rows": 160, "evaluate_every": 0}
METHODS = {
    "fedavg": {},
    "fedprox": {"mu": 0.5},
    "fedavg-masked": {},
    "hasa": {"budget": 0.6, "most": 1.0, "least": 0.4},
}


class PowerCut(Exception):
    """The process is gone."""


def final_weights(folder: Path) -> dict[str, np.ndarray]:
    store = SqliteRoundStore(folder / "run/rounds.sqlite")
    try:
        return tensors.load(BlobStore(folder / "run/blobs").path(store.closed()[-1].state))
    finally:
        store.close()


def on(config: RunConfig, backend: Any, folder: Path) -> RunConfig:
    """The same run on another backend, elsewhere."""
    section = replace(config.simulate, backend=backend)
    return replace(config, simulate=section, run=replace(config.run, folder=str(folder)))


@pytest.mark.parametrize("method", METHODS)
def test_the_same_weights_but_for_rounding(tmp_path: Path, method: str) -> None:
    config, text = make_config(tmp_path, method={"name": method, **METHODS[method]}, simulate=SMALL)
    for backend in ("portable", "torch"):
        simulate(on(config, backend, tmp_path / backend), text)

    expected, found = final_weights(tmp_path / "portable"), final_weights(tmp_path / "torch")
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-3, atol=1e-4, err_msg=name)
    assert any(not np.array_equal(found[name], value) for name, value in expected.items())


def test_batch_norm_and_adam_too(tmp_path: Path) -> None:
    config, text = make_config(
        tmp_path,
        rounds=1,
        model={"model": "resnet8"},
        train={"learning_rate": 0.001, "optimizer": {"kind": "adam"}},
        simulate={"rows": 80, "evaluate_every": 0},
    )
    found = [simulate(on(config, backend, tmp_path / backend), text) for backend in ("portable", "torch")]
    losses = [run.outcome.metrics[-1]["loss"] for run in found]
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)


def test_an_interrupted_run_goes_on(tmp_path: Path) -> None:
    config, text = make_config(tmp_path, simulate={**SMALL, "backend": "torch"})

    def cut(event: events.Event) -> None:
        if isinstance(event, events.UpdateTaken):
            raise PowerCut

    with pytest.raises(PowerCut):
        simulate(config, text, observer=cut)
    simulate(config, text)
    simulate(on(config, "torch", tmp_path / "undisturbed"), text)
    for name, value in final_weights(tmp_path / "undisturbed").items():
        np.testing.assert_array_equal(final_weights(tmp_path)[name], value)


def test_an_objective_that_torch_does_not_know_is_named(tmp_path: Path) -> None:
    config, text = make_config(tmp_path, method={"name": "fiarse"}, simulate={**SMALL, "backend": "torch"})
    with pytest.raises(ConfigError, match=r"does not know the objective's fiarse.*; set simulate.backend = 'portable'"):
        simulate(config, text)


def test_another_backend_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="backend"):
        make_config(tmp_path, simulate={"backend": "jax"})


def test_whole_numbers_are_taken_as_the_model_takes_them(tmp_path: Path) -> None:
    """The user's own integers on a model that takes fractions."""
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "d.npz", x=rng.integers(0, 9, (90, 4)).astype(np.uint16), y=np.arange(90) % 3)
    own = {**SMALL, "data": f"{tmp_path}/d.npz", "partition": "iid", "devices": 3}
    config, text = make_config(tmp_path, model={"model": "mlp"}, simulate=own)
    for backend in ("portable", "torch"):
        simulate(on(config, backend, tmp_path / backend), text)
    expected, found = final_weights(tmp_path / "portable"), final_weights(tmp_path / "torch")
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-3, atol=1e-4, err_msg=name)
