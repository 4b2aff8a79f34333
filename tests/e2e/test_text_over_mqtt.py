"""Text on a device is what it is in a simulation: word numbers from the file to the graph, and the same bytes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedwright.device_runtime import data
from fedwright.device_runtime.config import AgentConfig
from fedwright.device_runtime.data.local import LocalData
from fedwright.device_runtime.equipment import SPLIT_SEED
from fedwright.protocol.errors import DeviceError
from fedwright.protocol.link.broker import Broker
from fedwright.protocol.link.memory import MemoryBroker
from fedwright.server_runtime import run as runs
from fedwright.server_runtime.config import RunConfig
from fedwright.server_runtime.rounds import events
from fedwright.simulation.dealing import deal
from fedwright.simulation.simulate import make_reports, simulate
from helpers.fleet import WAIT_S, Running
from helpers.present import present
from helpers.resume import Links, final_state
from helpers.simulation import make_config, run_agents

WORDS, VOCABULARY, TITLES = 6, 40, 60
HASA = {"name": "hasa", "budget": 0.6, "most": 1.0, "least": 0.4}


def sentences(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Word numbers [TITLES, WORDS], short titles padded in front, and the next word of each; other words per device."""
    rng = np.random.default_rng(seed)
    words = rng.zipf(1.5, (TITLES, WORDS + 1)) % (VOCABULARY - 2 - 8 * seed) + 2
    x, y = words[:, :-1], words[:, -1]
    x[np.arange(WORDS) < rng.integers(0, WORDS - 1, (TITLES, 1))] = 0
    y[:3] = 1
    return x, y


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """One file per device: npz of two types of integers, and a csv table."""
    folder = tmp_path / "texts"
    folder.mkdir()
    for seed, dtype in enumerate((np.int64, np.uint16)):
        x, y = sentences(seed)
        np.savez(folder / f"pi-{seed}.npz", x=x.astype(dtype), y=y, classes=VOCABULARY)
    x, y = sentences(2)
    rows = [",".join(map(str, [*words, label])) for words, label in zip(x, y, strict=True)]
    header = ",".join([*(f"w{i}" for i in range(WORDS)), "next"])
    (folder / "pi-2.csv").write_text("\n".join([header, *rows]))
    return folder


def load_all(folder: Path) -> dict[str, LocalData]:
    """As agents load them."""
    return {
        path.stem: data.load(str(path), holdout_ratio=AgentConfig.holdout_ratio, seed=SPLIT_SEED)
        for path in sorted(folder.iterdir())
    }


def make(folder: Path, texts: Path, method: dict[str, Any]) -> tuple[RunConfig, str]:
    return make_config(
        folder,
        method=method,
        model={"model": "lstm-lm"},
        fleet={"devices": 3},
        train={"batch": 8, "learning_rate": 0.5},
        simulate={"data": f"devices:{texts}", "evaluate_every": 0},
    )


@pytest.mark.broker
@pytest.mark.parametrize("method", [{"name": "fedavg"}, HASA], ids=["fedavg", "hasa"])
def test_a_text_run_ends_with_the_bytes_of_its_simulation(
    tmp_path: Path, texts: Path, method: dict[str, float | str]
) -> None:
    config, text = make(tmp_path / "mqtt", texts, method)
    with Broker() as broker:
        links = Links(broker.url)
        with run_agents(links, tmp_path / "devices", load_all(texts)):
            link = links.link("server")
            outcome = runs.execute(config, text, link=link)
            link.close()

    simulated = simulate(replace(config, run=replace(config.run, folder=str(tmp_path / "simulated"))), text)
    assert final_state(tmp_path / "mqtt") == final_state(tmp_path / "simulated")
    assert {d: r.width for d, r in outcome.devices.items()} == {
        d: r.width for d, r in simulated.outcome.devices.items()
    }


def test_a_device_says_of_its_text_what_a_simulation_says(tmp_path: Path, texts: Path) -> None:
    """Word counts for HASA and the descriptor for FRAMP; they were those of measured numbers on devices."""
    config, _ = make(tmp_path, texts, HASA)
    simulated = make_reports(config, deal(config.simulate, seed=1))
    for device, own in load_all(texts).items():
        said, expected = own.summary(), simulated[device].data
        assert said.descriptor == expected.descriptor
        assert said.number_descriptor == expected.number_descriptor != said.descriptor
        assert said.score_counts == expected.score_counts
        assert sum(present(said.score_counts)) > len(own.y)


def test_fractions_are_turned_away_from_a_model_that_takes_words(tmp_path: Path, texts: Path) -> None:
    np.savez(tmp_path / "late.npz", x=sentences(0)[0] + 0.5, y=sentences(0)[1], classes=VOCABULARY)
    own = data.load(str(tmp_path / "late.npz"), holdout_ratio=0.2, seed=0)
    config, text = make(tmp_path / "run", texts, {"name": "fedavg"})
    broker = MemoryBroker()
    newcomers: list[Any] = []

    def observe(event: Any) -> None:
        if isinstance(event, events.RoundClosed) and not newcomers:
            newcomers.append(Running(broker, "late", tmp_path / "devices", data=own))

    with run_agents(broker, tmp_path / "devices", load_all(texts)):
        link = broker.link("server")
        runs.execute(config, text, link=link, observer=observe)
        link.close()
    newcomers[0].thread.join(WAIT_S)
    newcomers[0].stop()
    assert isinstance(newcomers[0].error, DeviceError)
    assert "has fractions (float32) but the model takes whole numbers such as word numbers (int64)" in str(
        newcomers[0].error
    )


def test_whole_numbers_that_are_measured_are_no_words_to_the_server(tmp_path: Path) -> None:
    """A float model over integer tables: counts and descriptor are those of the same numbers as fractions."""
    folder = tmp_path / "tables"
    folder.mkdir()
    for seed in range(3):
        x = np.random.default_rng(seed).integers(0, 9, (40, 5))
        np.savez(folder / f"pi-{seed}.npz", x=x, y=(x.sum(axis=1) > 20 + seed).astype(int) + (x[:, 0] > 4), classes=12)
    states = {}
    for name, method in {"framp": {"name": "framp", "sizes": [1.0, 0.5]}, "hasa": HASA}.items():
        config, text = make_config(
            tmp_path / name / "whole",
            method=method,
            model={"model": "mlp"},
            fleet={"devices": 3},
            simulate={"data": f"devices:{folder}", "evaluate_every": 0},
        )
        simulate(config, text)
        whole = deal(config.simulate, seed=config.run.seed)
        fractions = replace(whole, x=whole.x.astype(np.float32))
        simulate(replace(config, run=replace(config.run, folder=str(tmp_path / name / "float"))), text, dealt=fractions)
        states[name] = [final_state(tmp_path / name / kind) for kind in ("whole", "float")]
    assert whole.x.dtype == np.int64
    assert states["framp"][0] == states["framp"][1]
    assert states["hasa"][0] == states["hasa"][1]
