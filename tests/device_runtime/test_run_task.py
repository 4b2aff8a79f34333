"""One task, done twice, with a kept trainer and without: the same tensors."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from fedwright.device_runtime.describe.noise import ClassMeanNoise
from fedwright.device_runtime.guard import LOOK_S, BoardState, Guard, Limits
from fedwright.device_runtime.run_task import Result, Tools, run_task
from fedwright.device_runtime.store.checkpoint import Checkpoint
from fedwright.device_runtime.store.personal_layers import PersonalLayers
from fedwright.device_runtime.task_inputs import Inputs, Stopped
from fedwright.device_runtime.train import trainer_cache
from fedwright.device_runtime.train.loop import evaluation_batch
from fedwright.device_runtime.train.portable import PortableTrainer
from fedwright.protocol import artifact as artifacts
from fedwright.protocol import tensors
from fedwright.protocol.artifact import Artifact
from fedwright.protocol.blobs import make_ref
from fedwright.protocol.errors import OverBudget
from fedwright.protocol.messages import Recipe, Returns, Task
from fedwright.protocol.predictor import need_bytes
from helpers.fleet import make_data
from helpers.tiny_artifact import make_artifact, start_weights


@pytest.fixture
def bench(tmp_path: Path) -> Any:
    """A task with its blobs on disk, and tools that count the trainers they make."""
    blob = artifacts.pack(make_artifact())
    (tmp_path / "artifact").write_bytes(blob)
    (tmp_path / "weights").write_bytes(tensors.save(start_weights()))

    class Bench:
        inputs = Inputs(tmp_path / "artifact", tmp_path / "weights")
        made = 0

        def tools(self) -> Tools:
            def make(artifact: Artifact, sides: Any, frozen: Any) -> PortableTrainer:
                self.made += 1
                return PortableTrainer(artifact)

            return Tools(
                make,
                lambda artifact, recipe: None,
                Checkpoint(tmp_path / "checkpoint", every_s=60),
                PersonalLayers(tmp_path),
            )

        def task(self, *, batch: int = 8, **returns: Any) -> Task:
            recipe = Recipe(batch=batch, learning_rate=0.1, seed=3, epochs=2)
            return Task("t", "b", "r", 1, make_ref(blob), make_ref(b"w"), recipe, Returns(**returns), 60.0)

        def run_task(self, tools: Tools, task: Task | None = None, stop: Callable[[], bool] = lambda: False) -> Result:
            return run_task(task or self.task(), self.inputs, make_data("a"), tools=tools, should_stop=stop)

    return Bench()


def test_a_kept_trainer_gives_what_a_new_one_gives(bench: Any) -> None:
    tools = bench.tools()
    first, again = bench.run_task(tools), bench.run_task(tools)
    fresh = bench.run_task(bench.tools())

    assert bench.made == 2
    for result in (again, fresh):
        assert tensors.save(result.tensors) == tensors.save(first.tensors)
        assert result.stats.loss_last == first.stats.loss_last


def test_a_larger_batch_is_checked_anew(bench: Any) -> None:
    tools = bench.tools()
    bench.run_task(tools, bench.task(batch=4))
    bench.run_task(tools, bench.task(batch=8))
    assert bench.made == 2


def test_a_kept_trainer_is_checked_against_the_memory_that_is_free_now(bench: Any, tmp_path: Path) -> None:
    free = [10**9]
    hungry = structs.replace(make_artifact().manifest, sample_bytes=10**6)
    (tmp_path / "artifact").write_bytes(artifacts.pack(structs.replace(make_artifact(), manifest=hungry)))

    def check(artifact: Artifact, recipe: Recipe) -> None:
        need = need_bytes(artifact.manifest, recipe.batch)
        if need > free[0]:
            raise OverBudget(need, free[0])

    tools = replace(bench.tools(), check=check, kept=trainer_cache.TrainerCache(lambda: free[0]))
    bench.run_task(tools)
    # Eight samples of 1 MB with room for gaps and headroom: 13.5 MB are enough for what is there already.
    free[0] = 14 * 10**6
    bench.run_task(tools)
    assert bench.made == 1

    free[0] = 13 * 10**6
    with pytest.raises(OverBudget):
        bench.run_task(tools)
    free[0] = 10**9
    bench.run_task(tools)
    assert bench.made == 2


@pytest.mark.parametrize(("batch", "looks_at"), [(1, 4), (2, 8), (8, 32), (64, 32)])
def test_a_device_that_trains_small_batches_also_measures_in_small_ones(batch: int, looks_at: int) -> None:
    assert evaluation_batch(Recipe(batch, 0.1, 1)) == looks_at


@pytest.mark.parametrize("epochs", [2, 0], ids=["training", "measuring only"])
def test_nothing_begins_before_the_guard_lets_it(bench: Any, epochs: int) -> None:
    states = [BoardState(temperature_c=90.0), BoardState(temperature_c=40.0)]
    waits = []

    def wait(seconds: float) -> None:
        assert bench.made == 0
        waits.append(seconds)

    guard = Guard(Limits(most_temperature_c=80.0), lambda: states.pop(0) if len(states) > 1 else states[0], wait=wait)
    task = bench.task()
    task = structs.replace(task, recipe=structs.replace(task.recipe, epochs=epochs))

    done = bench.run_task(replace(bench.tools(), guard=guard), task)

    assert len(waits) == guard.pauses == 1
    assert done.stats.correct_before is not None


def test_measuring_pauses_too(bench: Any) -> None:
    """Every look finds the board at another temperature; the clock says that each is due."""
    looks = [40.0, 90.0, 40.0]
    ticks = itertools.count(step=LOOK_S)
    guard = Guard(
        Limits(most_temperature_c=80.0),
        lambda: BoardState(temperature_c=looks.pop(0) if len(looks) > 1 else looks[0]),
        clock=lambda: next(ticks),
        wait=lambda seconds: None,
    )
    task = structs.replace(bench.task(), recipe=Recipe(batch=1, learning_rate=0.1, seed=1, epochs=0))

    bench.run_task(replace(bench.tools(), guard=guard), task)

    assert guard.pauses == 1


def test_a_task_that_is_given_up_stops_measuring(bench: Any) -> None:
    answers = iter([False, True])
    with pytest.raises(Stopped):
        bench.run_task(bench.tools(), stop=lambda: next(answers, True))


def test_prototypes_leave_with_noise(bench: Any) -> None:
    class_mean_noise = ClassMeanNoise(0.5, b"0123456789abcdef", told=(3, 0, 5, 1))
    plain = bench.run_task(bench.tools(), bench.task(class_means=True)).tensors
    hidden = bench.run_task(
        replace(bench.tools(), class_mean_noise=class_mean_noise), bench.task(class_means=True)
    ).tensors

    assert hidden["prototype_counts"].tolist() == [3, 0, 5, 1]
    assert not hidden["prototypes"][1].any()
    moved = np.abs(hidden["prototypes"] - plain["prototypes"])[[0, 2]].mean()
    assert 0 < moved < 2 * np.abs(plain["prototypes"]).mean()
    np.testing.assert_array_equal(hidden["W"], plain["W"])


def test_a_large_model_is_not_kept(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_cache, "KEEP_BYTES", -1)
    tools = bench.tools()
    bench.run_task(tools)
    bench.run_task(tools)
    assert bench.made == 2


def test_weights_and_delta_say_the_same(bench: Any) -> None:
    delta = bench.run_task(bench.tools()).tensors
    whole = bench.run_task(bench.tools(), bench.task(weights="weights")).tensors
    for name, start in start_weights().items():
        np.testing.assert_allclose(whole[name], start + delta[name], atol=1e-6)


def test_prototypes_are_the_mean_embeddings_of_the_classes(bench: Any) -> None:
    result = bench.run_task(bench.tools(), bench.task(weights="none", class_means=True)).tensors
    data = make_data("a")
    # The tiny model's embedding is its input.
    expected = data.x[data.y == 0].mean(axis=0)
    np.testing.assert_allclose(result["prototypes"][0], expected, atol=1e-6)
    assert result["prototype_counts"].sum() == len(data.y)


def test_a_task_that_is_told_to_stop_stops(bench: Any) -> None:
    with pytest.raises(Stopped):
        bench.run_task(bench.tools(), stop=lambda: True)


def test_a_recipe_for_some_classes_trains_on_their_samples_only(bench: Any) -> None:
    data = make_data("a")
    task = structs.replace(bench.task(), recipe=structs.replace(bench.task().recipe, classes=[0, 2]))
    result = bench.run_task(bench.tools(), task)
    assert result.stats.samples == int(np.isin(data.y, [0, 2]).sum()) < len(data.y)


def test_a_recipe_for_classes_that_are_not_here_changes_nothing(bench: Any) -> None:
    recipe = structs.replace(bench.task().recipe, classes=[99], steps=5)
    result = bench.run_task(bench.tools(), structs.replace(bench.task(), recipe=recipe))
    assert result.stats.steps == 0
    assert not any(value.any() for value in result.tensors.values())
