"""The training step of `fedwright bench train-step` in another runtime; called by path, in that runtime's environment.

`jax FOLDER SECONDS` and `onnxruntime-training FOLDER SECONDS` read `forward.onnx` (model and loss, batch fixed),
`batch.npz` and `task.json`, train with one thread and print one line of JSON. Nothing of this package is imported.
"""

import importlib.metadata
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx

RATE = 0.01
LEAST_STEPS = 5
# onnxruntime-training 1.19.2 reads nothing newer.
IR_VERSION = 10
Step = Callable[[], object]
# Before the name of every weight in forward.onnx.
PREFIX = "module."
PACKAGES = {"jax": "jax", "onnxruntime-training": "onnxruntime-training-cpu"}


def use_one_core() -> None:
    """JAX takes as many threads as the process may use cores; no option of its own holds them all."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def jax_step(folder: Path) -> Step:
    """One jitted step of SGD with momentum; old weights and state are given away to the new ones."""
    import jax

    sys.path.insert(0, str(Path(__file__).parent))
    from onnx_in_jax import make_loss

    model = onnx.load(folder / "forward.onnx")
    task = json.loads((folder / "task.json").read_text())
    batch = dict(np.load(folder / "batch.npz"))
    loss_of, weights = make_loss(model)
    trained = {PREFIX + name: jax.numpy.asarray(weights.pop(PREFIX + name)) for name in task["trainable"]}
    kept = {name: jax.numpy.asarray(value) for name, value in weights.items()}
    speeds = {name: jax.numpy.zeros_like(value) for name, value in trained.items()}

    def step(trained: Any, kept: Any, speeds: Any, batch: Any) -> Any:
        (loss, running), grads = jax.value_and_grad(loss_of, has_aux=True)(trained, kept, batch)
        speeds = {name: task["momentum"] * speeds[name] + grad for name, grad in grads.items()}
        return loss, {n: v - RATE * speeds[n] for n, v in trained.items()}, {**kept, **running}, speeds

    compiled = jax.jit(step, donate_argnums=(0, 1, 2))
    state = [trained, kept, speeds]

    def run() -> object:
        loss, *state[:] = compiled(*state, batch)
        return float(loss)

    return run


# Outputs that a gradient of onnxruntime-training reads, beside the first.
MORE_OUTPUTS = {"MaxPool": 1, "SoftmaxCrossEntropyLoss": 1, "LayerNormalization": 2, "LSTM": 2, "GRU": 1}


def give_outputs(model: onnx.ModelProto) -> None:
    """Name the outputs that gradients read but torch left out."""
    for at, node in enumerate(model.graph.node):
        wanted = 1 + MORE_OUTPUTS.get(node.op_type, 0)
        node.output.extend(f"more_{at}_{number}" for number in range(len(node.output), wanted))


def training_step(folder: Path) -> Step:
    """onnxruntime-training's own gradient and its SGD, which has no momentum."""
    import onnxruntime

    package = ModuleType("onnxruntime.training")
    # Its own __init__ needs torch.
    package.__path__ = [str(Path(onnxruntime.__file__).parent / "training")]
    sys.modules["onnxruntime.training"] = package
    from onnxruntime.capi import _pybind_state
    from onnxruntime.training import artifacts

    native: Any = _pybind_state
    task = json.loads((folder / "task.json").read_text())
    batch = dict(np.load(folder / "batch.npz"))
    model = onnx.load(folder / "forward.onnx")
    model.ir_version = IR_VERSION
    give_outputs(model)
    names = {tensor.name for tensor in model.graph.initializer}
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.enable_mem_pattern = False
    options.log_severity_level = 4
    with tempfile.TemporaryDirectory() as made:
        artifacts.generate_artifacts(
            model,
            requires_grad=[PREFIX + name for name in task["trainable"]],
            frozen_params=sorted({PREFIX + name for name in task["frozen"]} & names),
            optimizer=artifacts.OptimType.SGD,
            artifact_directory=made,
            loss_input_names=["loss"],
        )
        path = Path(made, "optimizer_model.onnx")
        optimizer = onnx.load(path)
        optimizer.ir_version = IR_VERSION
        onnx.save(optimizer, path)
        device = native.OrtDevice(native.OrtDevice.cpu(), native.OrtDevice.default_memory(), 0)
        state = native.load_checkpoint(str(Path(made, "checkpoint")))
        module = native.Module(str(Path(made, "training_model.onnx")), state, None, device, options)
        stepper = native.Optimizer(str(path), state, device, options)
    stepper.set_learning_rate(RATE)
    inputs = [batch[name] for name in module.input_names(True)]

    def run() -> object:
        fetches = native.OrtValueVector()
        module.train_step(inputs, fetches)
        stepper.optimizer_step()
        module.lazy_reset_grad()
        return float(np.asarray(fetches[0].numpy()).reshape(-1)[0])

    return run


def best_of(step: Step, seconds: float) -> dict[str, float]:
    """Least CPU and wall milliseconds of a step, and the loss before the first one and after the last."""
    first = float(step())  # type: ignore[arg-type]
    step()
    cpu_ms = wall_ms = float("inf")
    ends, done, last = time.monotonic() + seconds, 0, first
    while done < LEAST_STEPS or time.monotonic() < ends:
        done += 1
        cpu, wall = time.process_time(), time.perf_counter()
        last = float(step())  # type: ignore[arg-type]
        cpu_ms = min(cpu_ms, (time.process_time() - cpu) * 1e3)
        wall_ms = min(wall_ms, (time.perf_counter() - wall) * 1e3)
    return {"cpu_ms": cpu_ms, "wall_ms": wall_ms, "first_loss": first, "last_loss": last}


def main(kind: str, folder: str, seconds: str) -> dict[str, Any]:
    """Measure one runtime."""
    use_one_core()
    step = {"jax": jax_step, "onnxruntime-training": training_step}[kind](Path(folder))
    return best_of(step, float(seconds)) | {"version": importlib.metadata.version(PACKAGES[kind])}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(*sys.argv[1:])) + "\n")
