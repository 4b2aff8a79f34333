"""Gradients of single samples by torch, against which the graphs' own are held."""

from typing import Any

import numpy as np
import onnxruntime as ort
import torch
from torch import nn

from fedwright.protocol.artifact import Artifact


def clipped_sum(
    module: nn.Module, x: Any, y: Any, *, clip: float, names: list[str], fit: Any = nn.functional.cross_entropy
) -> dict[str, np.ndarray]:
    """Σ_b min(1, clip / ||∇_b||) ∇_b by torch.func.grad of one sample after the other, in float64."""
    module = module.double().train()
    parameters = {name: value.detach() for name, value in module.named_parameters()}
    trained = {name: parameters[name] for name in names}
    rest = {name: value for name, value in parameters.items() if name not in trained}
    inputs = torch.as_tensor(x)
    inputs = inputs.double() if inputs.is_floating_point() else inputs

    def loss(chosen: dict[str, torch.Tensor], sample: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        made = torch.func.functional_call(module, {**chosen, **rest}, (sample.unsqueeze(0),))
        logits = made[0] if isinstance(made, tuple) else made
        answer: torch.Tensor = fit(logits.flatten(0, -2), label if label.is_floating_point() else label.reshape(-1))
        return answer

    each = [torch.func.grad(loss)(trained, *sample) for sample in zip(inputs, torch.as_tensor(y), strict=True)]
    grads = {name: torch.stack([one[name] for one in each]) for name in names}
    norms = torch.cat([grad.flatten(1) for grad in grads.values()], 1).norm(dim=1)
    factor = torch.clamp(clip / norms, max=1.0)
    return {name: torch.tensordot(factor, grad, dims=([0], [0])).numpy() for name, grad in grads.items()}


def graph_sum(artifact: Artifact, weights: dict[str, np.ndarray], x: Any, y: Any, *, clip: float) -> dict[str, Any]:
    """What a private graph of plain SGD sums up: with rate 1, nothing expected but 1 and no noise, before - after."""
    session = ort.InferenceSession(artifact.train, providers=["CPUExecutionProvider"])
    manifest = artifact.manifest
    feed: dict[str, Any] = {"x": x, "y": y, "row_weight": np.ones(len(y), np.float32)}
    feed |= {spec.name: np.zeros(spec.shape, np.float32) for spec in manifest.noise}
    scalars = {"learning_rate": 1.0, "clip": clip, "expected_batch": 1.0, "seed": 1}
    feed |= {spec.name: np.full(spec.shape, scalars[spec.name], spec.dtype) for spec in manifest.scalars}
    feed |= {slot.name: weights[slot.name] for slot in manifest.slots}
    names = [slot.name for slot in manifest.slots]
    after = session.run([slot.output for slot in manifest.slots], feed)
    return {name: weights[name].astype(np.float64) - made for name, made in zip(names, after, strict=True)}
