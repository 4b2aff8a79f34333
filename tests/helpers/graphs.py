"""Runs artifacts step by step and compares them with torch."""

import copy
from typing import Any

import numpy as np
import onnxruntime as ort
import torch
from torch import nn

from fedwright.device_runtime.train.check import check_artifact
from fedwright.protocol.artifact import Artifact
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.builder import build, initial_weights
from fedwright.server_runtime.spec import ModelSpec, Objective, Optimizer, Structure

Tensors = dict[str, Any]


def session(model: bytes, frozen: Tensors | None = None) -> ort.InferenceSession:
    """A one-thread session, with external initializers supplied."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    if frozen:
        values = [ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(v)) for v in frozen.values()]
        options.add_external_initializers(list(frozen), values)
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


class Stepper:
    """Trains an artifact by feeding every step's outputs back."""

    def __init__(self, artifact: Artifact, weights: Tensors, *, sides: Tensors | None = None) -> None:
        # Whatever is built must be what a device accepts.
        check_artifact(artifact, batch=1)
        self.manifest = artifact.manifest
        names = {spec.name for spec in self.manifest.frozen}
        frozen = {name: value for name, value in weights.items() if name in names}
        self.session = session(artifact.train, frozen)
        self.evaluation = session(artifact.eval, frozen)
        self.sides = sides or {}
        self.slots = {s.name: np.array(weights.get(s.name, np.zeros(s.shape, np.float32))) for s in self.manifest.slots}

    def step(self, batch: Tensors, *, learning_rate: float = 0.1, seed: int = 0) -> dict[str, Any]:
        """One step; returns all outputs."""
        feed = {**batch, **self.sides, **self.slots, "learning_rate": np.array(learning_rate, np.float32)}
        if any(spec.name == "seed" for spec in self.manifest.scalars):
            feed["seed"] = np.array(seed, np.int64)
        names = [self.manifest.loss, *self.manifest.metrics, *(slot.output for slot in self.manifest.slots)]
        outputs = dict(zip(names, self.session.run(names, feed), strict=True))
        self.slots = {slot.name: outputs[slot.output] for slot in self.manifest.slots}
        return outputs

    def predict(self, batch: Tensors) -> list[Any]:
        """Logits and embedding."""
        feed = {n: batch[n] for n in self.manifest.eval_batch} | {n: self.slots[n] for n in self.manifest.eval_slots}
        answer: list[Any] = self.evaluation.run([self.manifest.logits, self.manifest.embedding], feed)
        return answer


def structure_of(module_input: tuple[int, ...], classes: int, **parts: Any) -> Structure:
    """A structure for a module that a test makes itself."""
    return Structure(ModelSpec("test", module_input, classes), **parts)


def graph_gradients(
    module: nn.Module, batch: Tensors, classes: int, *, objective: Objective | None = None, **more: Any
) -> tuple[float, Tensors]:
    """Loss and gradients of one SGD step at learning rate 1: old parameters minus new ones."""
    weights = initial_weights(module)
    structure = structure_of(
        batch["x"].shape[1:],
        classes,
        objective=objective or Objective(),
        optimizer=Optimizer(),
        trainable=more.get("trainable", ("",)),
    )
    stepper = Stepper(build(structure, module), weights, sides=more.get("sides"))
    outputs = stepper.step(batch, learning_rate=1.0, seed=more.get("seed", 0))
    names = [slot.name for slot in stepper.manifest.slots if slot.role == "trainable"]
    return float(outputs["loss"]), {n: weights[n].astype(np.float64) - stepper.slots[n] for n in names}


def torch_gradients(module: nn.Module, batch: Tensors) -> tuple[float, Tensors]:
    """Loss and gradients of cross-entropy in float64."""
    twin = _double(module)
    x = torch.from_numpy(batch["x"])
    logits = twin(x.double() if x.is_floating_point() else x)
    loss = nn.functional.cross_entropy(logits.flatten(0, -2), torch.from_numpy(batch["y"]).flatten())
    return collect(loss, twin)


def collect(loss: torch.Tensor, module: nn.Module) -> tuple[float, Tensors]:
    """Run backward and collect the gradients by name (zeros where there is none)."""
    loss.backward()
    grads = {n: p.grad if p.grad is not None else torch.zeros_like(p) for n, p in module.named_parameters()}
    return float(loss.detach()), {name: grad.numpy() for name, grad in grads.items()}


def _double(module: nn.Module) -> nn.Module:
    twin = copy.deepcopy(module).double()
    twin.train()
    return twin


def relative_error(found: Tensors, wanted: Tensors) -> float:
    """Norm of the difference over the norm of the wanted gradients, over all tensors together."""
    assert found.keys() == wanted.keys()
    wrong = sum(float(np.sum((found[n] - wanted[n]) ** 2)) for n in wanted)
    right = sum(float(np.sum(np.square(wanted[n]))) for n in wanted)
    return float(np.sqrt(wrong / max(right, 1e-30)))


def followed_anew(spec: ModelSpec, *, seed: int = 0) -> nn.Module:
    """A model of the zoo whose graph is made each time, not taken from what the process keeps."""
    module = zoo.create(spec, seed=seed)
    del module.zoo_spec
    return module
