"""Threads: one for small graphs, all cores where that pays, the same choice every time."""

from pathlib import Path
from typing import Any, cast
from unittest.mock import MagicMock

import numpy as np
import pytest
from msgspec import structs

from fedwright.device_runtime import facts, start
from fedwright.device_runtime.config import AgentConfig
from fedwright.device_runtime.equipment import make_tools
from fedwright.device_runtime.profiler.measure import make_batch
from fedwright.device_runtime.profiler.measure import start as begin
from fedwright.device_runtime.profiler.store import PROFILE_NAME, save_profile
from fedwright.device_runtime.resources import Resources
from fedwright.device_runtime.train.portable import PortableTrainer
from fedwright.device_runtime.train.threads import SHORT_S, pick_threads
from fedwright.protocol.artifact import Artifact
from fedwright.protocol.errors import ConfigError
from fedwright.protocol.operator_costs import FEATURES
from fedwright.protocol.predictor import WORK_BATCHES, Profile
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.builder import build
from fedwright.server_runtime.spec import ModelSpec, Optimizer, Structure
from helpers.present import present
from helpers.tiny_artifact import make_artifact

ONE_CALL = [value for _ in WORK_BATCHES for value in (1.0, *[0.0] * (len(FEATURES) - 1))]
MANIFEST = structs.replace(make_artifact().manifest, work={"Add": ONE_CALL})


def profile(threads: int, step_s: float) -> Profile:
    """Of a board on which the one call of MANIFEST takes so long."""
    return Profile("board", "runtime", threads, kinds={"Add": [step_s, *[0.0] * (len(FEATURES) - 1)]})


def artifact(model: str, shape: tuple[int, int, int], classes: int = 10) -> Artifact:
    spec = ModelSpec(model, shape, classes)
    return build(Structure(spec, optimizer=Optimizer(momentum=0.9)), zoo.create(spec, seed=0))


@pytest.mark.parametrize(
    ("profiles", "threads"),
    [
        pytest.param([profile(1, 0.004), profile(4, 0.006)], 1, id="more are slower"),
        pytest.param([profile(1, 0.2), profile(4, 0.07)], 4, id="more are faster"),
        pytest.param([profile(1, 0.01), profile(4, 0.01)], 1, id="no difference"),
        pytest.param([profile(1, SHORT_S / 2)], 1, id="one profile, short step"),
        pytest.param([profile(1, SHORT_S * 2)], 4, id="one profile, long step"),
        pytest.param([profile(2, 9.0)], 1, id="a profile for another number says nothing"),
        pytest.param([], 1, id="nothing measured, small graph"),
    ],
)
def test_the_faster_of_one_thread_and_all_cores(profiles: list[Profile], threads: int) -> None:
    assert pick_threads(MANIFEST, 4, profiles) == threads


def test_real_graphs_without_a_profile() -> None:
    small, large = artifact("lenet", (1, 28, 28)), artifact("resnet8", (3, 32, 32))

    assert pick_threads(small.manifest, 4) == 1
    assert pick_threads(large.manifest, 4) == 4
    assert pick_threads(large.manifest, 1) == 1


@pytest.mark.parametrize("asked", [0, 2], ids=["left open", "told"])
def test_tools_follow_the_choice_and_the_owners_word(
    asked: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts, "cores", lambda: 4)
    tools = make_tools("portable", threads=asked, folder=tmp_path)

    trainer = tools.make_trainer(make_artifact(), {}, {})

    # The tiny graph counts no work, so that nothing speaks against all cores.
    assert cast(PortableTrainer, trainer)._threads == (asked or 4)
    small = tools.make_trainer(structs.replace(make_artifact(), manifest=MANIFEST), {}, {})
    assert cast(PortableTrainer, small)._threads == (asked or 1)


@pytest.mark.parametrize("threads", [1, 2])
def test_the_same_number_of_threads_gives_the_same_bytes(threads: int) -> None:
    made, found = artifact("lenet-valid", (1, 28, 28)), []
    for _ in range(2):
        trainer = PortableTrainer(made, threads=threads)
        begin(trainer)
        for step in range(3):
            trainer.step(make_batch(trainer, 8), learning_rate=0.01, seed=step)
        found.append(trainer.weights())

    for name, value in found[0].items():
        np.testing.assert_array_equal(found[1][name], value)


def holdings_of(config: AgentConfig, monkeypatch: pytest.MonkeyPatch) -> Resources:
    agent = MagicMock()
    monkeypatch.setattr(start, "_connect", lambda config: (MagicMock(), MagicMock()))
    monkeypatch.setattr(start, "Agent", agent)
    with start.open_agent(config):
        _, _, resources = agent.call_args.args
        assert isinstance(resources, Resources)
        return resources


def test_an_agent_reports_its_owners_limits_and_the_profile_for_its_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts, "cores", lambda: 4)
    np.savez(tmp_path / "d.npz", x=np.zeros((20, 3), np.float32), y=np.arange(20) % 2)
    board, runtime = facts.board_model(), facts.runtime()
    for threads in (1, 4):
        save_profile(tmp_path / "state" / PROFILE_NAME, Profile(board, runtime, threads))
    data, state = f"npz:{tmp_path / 'd.npz'}", tmp_path / "state"
    # The process of the tests keeps its priority.
    fields: dict[str, Any] = {"broker": "mqtt://h:1", "device": "pi", "data": data, "state": state, "nice": 0}

    open_ = holdings_of(AgentConfig(**fields, round_s=20.0, round_mb=1.5), monkeypatch)
    told = holdings_of(AgentConfig(**fields, threads=4), monkeypatch)

    assert (open_.round_s, open_.round_bytes) == (20.0, 1_500_000)
    assert (told.round_s, told.round_bytes) == (None, None)
    assert b'"threads":1' in present(open_.profile)
    assert b'"threads":4' in present(told.profile)


@pytest.mark.parametrize("limit", [{"round_s": 0.0}, {"round_mb": -1.0}, {"round_s": float("nan")}])
def test_a_limit_that_allows_nothing_is_refused(limit: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="must be above 0; leave it out"):
        AgentConfig(broker="mqtt://h:1", device="pi", data="d", **limit)
