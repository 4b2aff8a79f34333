"""Steps in parts: micro-batches end with what torch makes of the whole batch, in the place of what was there."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from msgspec import structs

from fedwright.device_runtime.train.check import check_artifact
from fedwright.device_runtime.train.portable import PortableTrainer, parts_of
from fedwright.protocol.artifact import EDGES, SUM, Artifact, Slot, unpack, with_files
from fedwright.protocol.artifact import pack as packed
from fedwright.protocol.errors import BadArtifact, BuildError
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.autodiff.graph import Graph, Node, Value
from fedwright.server_runtime.artifacts.builder import build, initial_weights
from fedwright.server_runtime.artifacts.folder import read_folder, write_folder
from fedwright.server_runtime.artifacts.in_parts import check_in_place
from fedwright.server_runtime.spec import ModelSpec, Optimizer, Structure

BATCH, RATE, STEPS = 8, 0.05, 3
MakeOptimizer = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]
OPTIMIZERS: dict[str, tuple[Optimizer, MakeOptimizer]] = {
    "sgd": (Optimizer(), lambda p: torch.optim.SGD(p, RATE)),
    "momentum": (
        Optimizer(momentum=0.9, weight_decay=1e-2),
        lambda p: torch.optim.SGD(p, RATE, momentum=0.9, weight_decay=1e-2),
    ),
    "clipped": (Optimizer(momentum=0.9, clip_norm=0.1), lambda p: torch.optim.SGD(p, RATE, momentum=0.9)),
    # Where gradients are next to nothing, eps decides and not the last bits.
    "adam": (Optimizer("adam", eps=1e-3), lambda p: torch.optim.Adam(p, RATE, eps=1e-3)),
    "adamw": (
        Optimizer("adamw", eps=1e-3, weight_decay=0.1),
        lambda p: torch.optim.AdamW(p, RATE, eps=1e-3, weight_decay=0.1),
    ),
}


def structure_of(model: str, optimizer: Optimizer | None = None) -> Structure:
    entry = zoo.MODELS[model]
    spec = ModelSpec(model, entry.example_shape, entry.example_classes)
    return Structure(spec, optimizer=optimizer or Optimizer(momentum=0.9), parts=True)


def batch_for(spec: ModelSpec) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((BATCH, *spec.input_shape)).astype(np.float32)
    return {"x": x, "y": rng.integers(0, spec.classes, BATCH)}


@pytest.fixture(scope="module")
def artifact() -> Artifact:
    structure = structure_of("cnn-small")
    return build(structure, zoo.create(structure.spec, seed=0))


@pytest.mark.parametrize("part", [3, None], ids=["in parts", "in one"])
@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_steps_end_where_torch_ends(name: str, part: int | None) -> None:
    optimizer, make = OPTIMIZERS[name]
    structure = structure_of("cnn-small", optimizer)
    module = zoo.create(structure.spec, seed=0).train()
    trainer, batch = PortableTrainer(build(structure, module)), batch_for(structure.spec)
    trainer.load(initial_weights(module))
    torch_steps = make(list(module.parameters()))

    for _ in range(STEPS):
        torch_steps.zero_grad()
        loss = torch.nn.functional.cross_entropy(module(torch.from_numpy(batch["x"])), torch.from_numpy(batch["y"]))
        loss.backward()
        if optimizer.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(module.parameters(), optimizer.clip_norm)
        torch_steps.step()
        found = trainer.step_in_parts(batch, learning_rate=RATE, seed=0, part=part)

        assert found.loss == pytest.approx(loss.item(), rel=1e-4)

    for key, value in module.named_parameters():
        np.testing.assert_allclose(trainer.weights()[key], value.detach().numpy(), rtol=2e-4, atol=2e-6, err_msg=key)


def test_running_statistics_go_on_from_part_to_part() -> None:
    structure = structure_of("resnet8")
    module = zoo.create(structure.spec, seed=0).train()
    trainer, batch = PortableTrainer(build(structure, module)), batch_for(structure.spec)
    trainer.load(initial_weights(module))
    with torch.no_grad():
        for rows, _ in parts_of(BATCH, 4):
            module(torch.from_numpy(batch["x"][rows]))

    trainer.step_in_parts(batch, learning_rate=RATE, seed=0, part=4)

    for key, value in module.named_buffers():
        if "running" in key:
            np.testing.assert_allclose(trainer.weights()[key], value.numpy(), rtol=1e-4, atol=1e-5, err_msg=key)


def test_parts_are_as_even_as_can_be() -> None:
    sizes = [rows.stop - rows.start for rows, _ in parts_of(33, 8)]

    assert sizes == [6, 7, 6, 7, 7]
    assert sum(share for _, share in parts_of(33, 8)) == pytest.approx(1)


def test_state_is_held_once() -> None:
    structure = structure_of("resnet18")
    module = zoo.create(structure.spec, seed=0)
    parameters = sum(4 * value.numel() for value in module.parameters())

    once = build(structure, module).manifest.fixed_bytes
    twice = build(replace(structure, parts=False), module).manifest.fixed_bytes

    # Parameters and momentum, read and written, and what a step needs for itself.
    assert twice > 4 * parameters
    assert once < 2.7 * parameters


def test_what_is_read_after_it_was_written_is_found() -> None:
    graph = Graph([Value("w", (2,)), Value("g", (2,))])
    graph.nodes += [Node("Sub", ["w", "g"], ["next/w"]), Node("Mul", ["w", "w"], ["square"])]

    with pytest.raises(BuildError, match="Mul reads w"):
        check_in_place(graph, ["w"])


def test_a_device_takes_it_and_the_wire_brings_it(artifact: Artifact, tmp_path: object) -> None:
    check_artifact(artifact, batch=BATCH, free_bytes=10**10)
    write_folder(artifact, tmp_path)  # type: ignore[arg-type]

    assert unpack(packed(artifact)) == artifact
    assert read_folder(tmp_path) == artifact  # type: ignore[arg-type]


@pytest.mark.parametrize("case", ["no update", "other update", "sum of nothing", "wrong size", "missing sums"])
def test_a_device_refuses_graphs_that_do_not_belong_together(artifact: Artifact, case: str) -> None:
    manifest, first = artifact.manifest, artifact.manifest.sums[0]
    changed = {
        "no update": lambda: structs.replace(artifact, update=b""),
        "other update": lambda: structs.replace(artifact, update=artifact.eval),
        "sum of nothing": lambda: replaced(artifact, sums=[*manifest.sums[1:], SUM + "nothing"]),
        "wrong size": lambda: replaced(artifact, slots=[resized(slot, first) for slot in manifest.slots]),
        "missing sums": lambda: replaced(artifact, sums=[]),
    }[case]()

    with pytest.raises(BadArtifact):
        check_artifact(with_files(changed), batch=BATCH)


def replaced(artifact: Artifact, **changes: object) -> Artifact:
    return structs.replace(artifact, manifest=structs.replace(artifact.manifest, **changes))


def resized(slot: Slot, name: str) -> Slot:
    return structs.replace(slot, shape=[1]) if slot.name == name else slot


def test_nodes_that_hang_together_and_graphs_of_one_run_are_not_parted(artifact: Artifact) -> None:
    whole = structure_of("cnn-small")
    plain = PortableTrainer(build(replace(whole, parts=False), zoo.create(whole.spec, seed=0)))

    with pytest.raises(BadArtifact, match="takes none"):
        plain.step_in_parts(batch_for(whole.spec), learning_rate=RATE, seed=0, part=2)
    with pytest.raises(BadArtifact, match="takes none"):
        PortableTrainer(artifact).step_in_parts(
            batch_for(whole.spec) | {EDGES: np.zeros((0, 2), np.int64)}, learning_rate=RATE, seed=0, part=2
        )
