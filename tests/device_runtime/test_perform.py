"""One task, done twice, with a kept trainer and without: the same tensors."""

import numpy as np
import pytest
from msgspec import structs

from fedwright.device_runtime.perform import Inputs, Stopped, Tools, perform
from fedwright.device_runtime.store.checkpoint import Checkpoint
from fedwright.device_runtime.train import kept
from fedwright.device_runtime.train.portable import PortableTrainer
from fedwright.protocol import artifact as artifacts
from fedwright.protocol import tensors
from fedwright.protocol.blobs import make_ref
from fedwright.protocol.messages import Recipe, Returns, Task
from helpers.fleet import make_data
from helpers.tiny_artifact import make_artifact, start_weights


@pytest.fixture
def bench(tmp_path):
    """A task with its blobs on disk, and tools that count the trainers they make."""
    blob = artifacts.pack(make_artifact())
    (tmp_path / "artifact").write_bytes(blob)
    (tmp_path / "weights").write_bytes(tensors.save(start_weights()))

    class Bench:
        inputs = Inputs(tmp_path / "artifact", tmp_path / "weights")
        made = 0

        def tools(self) -> Tools:
            def make(artifact, sides, frozen):
                self.made += 1
                return PortableTrainer(artifact)

            return Tools(make, lambda artifact, recipe: None, Checkpoint(tmp_path / "checkpoint", every_s=60))

        def task(self, *, batch: int = 8, **returns) -> Task:
            recipe = Recipe(batch=batch, learning_rate=0.1, seed=3, epochs=2)
            return Task("t", "b", "r", 1, make_ref(blob), make_ref(b"w"), recipe, Returns(**returns), 60.0)

        def perform(self, tools: Tools, task: Task | None = None, stop=lambda: False):
            return perform(task or self.task(), self.inputs, make_data("a"), tools=tools, should_stop=stop)

    return Bench()


def test_a_kept_trainer_gives_what_a_new_one_gives(bench):
    tools = bench.tools()
    first, again = bench.perform(tools), bench.perform(tools)
    fresh = bench.perform(bench.tools())

    assert bench.made == 2
    for result in (again, fresh):
        assert tensors.save(result.tensors) == tensors.save(first.tensors)
        assert result.stats.loss_last == first.stats.loss_last


def test_a_larger_batch_is_checked_anew(bench):
    tools = bench.tools()
    bench.perform(tools, bench.task(batch=4))
    bench.perform(tools, bench.task(batch=8))
    assert bench.made == 2


def test_a_large_model_is_not_kept(bench, monkeypatch):
    monkeypatch.setattr(kept, "KEEP_BYTES", -1)
    tools = bench.tools()
    bench.perform(tools)
    bench.perform(tools)
    assert bench.made == 2


def test_weights_and_delta_say_the_same(bench):
    delta = bench.perform(bench.tools()).tensors
    whole = bench.perform(bench.tools(), bench.task(weights="weights")).tensors
    for name, start in start_weights().items():
        np.testing.assert_allclose(whole[name], start + delta[name], atol=1e-6)


def test_prototypes_are_the_mean_embeddings_of_the_classes(bench):
    result = bench.perform(bench.tools(), bench.task(weights="none", prototypes=True)).tensors
    data = make_data("a")
    # The tiny model's embedding is its input.
    expected = data.x[data.y == 0].mean(axis=0)
    np.testing.assert_allclose(result["prototypes"][0], expected, atol=1e-6)
    assert result["prototype_counts"].sum() == len(data.y)


def test_a_task_that_is_told_to_stop_stops(bench):
    with pytest.raises(Stopped):
        bench.perform(bench.tools(), stop=lambda: True)


def test_a_recipe_for_some_classes_trains_on_their_samples_only(bench):
    data = make_data("a")
    task = structs.replace(bench.task(), recipe=structs.replace(bench.task().recipe, classes=[0, 2]))
    result = bench.perform(bench.tools(), task)
    assert result.stats.samples == int(np.isin(data.y, [0, 2]).sum()) < len(data.y)


def test_a_recipe_for_classes_that_are_not_here_changes_nothing(bench):
    recipe = structs.replace(bench.task().recipe, classes=[99], steps=5)
    result = bench.perform(bench.tools(), structs.replace(bench.task(), recipe=recipe))
    assert result.stats.steps == 0
    assert not any(value.any() for value in result.tensors.values())
