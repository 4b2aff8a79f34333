"""The reference that training graphs are compared with: the same Trainer on torch.

Snapshots use the same names as the portable backend's slots and can be exchanged with it.
"""

from collections.abc import Callable, Mapping
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedwright.device_runtime.train.base import Array, StepResult, Tensors
from fedwright.protocol.artifact import EDGES
from fedwright.protocol.errors import BadBlob, DataError

STEP = "optimizer/step"

# What torch keeps per parameter, and the prefix of the slot that holds it.
_STATE = {"sgd": {"momentum_buffer": "momentum"}, "adam": {"exp_avg": "adam_m", "exp_avg_sq": "adam_v"}}


class OptimizerOptions(Protocol):
    """What the optimizer of an artifact's structure says."""

    @property
    def kind(self) -> Literal["sgd", "adam", "adamw"]: ...
    @property
    def momentum(self) -> float: ...
    @property
    def weight_decay(self) -> float: ...
    @property
    def beta1(self) -> float: ...
    @property
    def beta2(self) -> float: ...
    @property
    def eps(self) -> float: ...
    @property
    def clip_norm(self) -> float | None: ...


Sides = Mapping[str, Tensor]
Penalty = Callable[[nn.Module, Tensor, Tensor, Mapping[str, Tensor], Sides], Tensor]
"""module, logits, embedding, batch and side inputs -> a term that is added to cross-entropy."""


def proximal(weight: float) -> Penalty:
    """mu/2 * ||w - centre||^2 over the trainable parameters; side inputs `centre/<parameter>`."""

    def penalty(
        module: nn.Module, logits: Tensor, embedding: Tensor, batch: Mapping[str, Tensor], sides: Sides
    ) -> Tensor:
        trained = ((name, value) for name, value in module.named_parameters() if value.requires_grad)
        return weight / 2 * torch.stack([((w - sides[f"centre/{name}"]) ** 2).sum() for name, w in trained]).sum()

    return penalty


def own_classes(rows: Tensor, sides: Sides) -> Tensor:
    """Logits with those of classes that the device lacks set to zero; side input `class_mask`."""
    return rows * sides["class_mask"]


class TorchTrainer:
    """Trainer on a torch module; parameters stay as they are that do not require a gradient, or are not `trainable`."""

    def __init__(
        self,
        module: nn.Module,
        optimizer: OptimizerOptions,
        *,
        trainable: tuple[str, ...] = ("",),
        penalty: Penalty | None = None,
        sides: Tensors | None = None,
        shown: Callable[[Tensor, Sides], Tensor] | None = None,
    ) -> None:
        self._module = module
        self._reads_words = _reads_words(module)
        self._options = optimizer
        self._penalty = penalty
        self._shown = shown
        self.give_sides(sides or {})
        for name, value in module.named_parameters():
            value.requires_grad_(value.requires_grad and name.startswith(trainable))
        self._trained = {name: value for name, value in module.named_parameters() if value.requires_grad}
        saved = module.state_dict().keys()
        # Parameters that the module itself keeps as they are travel like buffers.
        kept = {name: value for name, value in module.named_parameters() if name not in self._trained}
        self._buffers = {
            name: value
            for name, value in [*kept.items(), *module.named_buffers()]
            if name in saved and value.is_floating_point() and name.startswith(trainable)
        }
        self._seen = Tensor()
        _last_layer(module).register_forward_pre_hook(self._see)
        self._optimizer = self._fresh_optimizer()

    def give_sides(self, sides: Tensors) -> None:
        """Replace the side inputs."""
        self._sides = {name: torch.tensor(value) for name, value in sides.items()}

    def give_frozen(self, frozen: Tensors) -> None:
        """Replace parameters and buffers that do not train."""
        held = {**dict(self._module.named_parameters()), **dict(self._module.named_buffers())}
        self._fill({name: held[name] for name in frozen}, frozen)

    def load(self, weights: Tensors) -> None:
        """Start from these weights with a fresh optimizer."""
        self._fill({**self._trained, **self._buffers}, weights)
        self._optimizer = self._fresh_optimizer()

    def step(self, batch: Tensors, *, learning_rate: float, seed: int) -> StepResult:
        """One optimizer step on a batch named as in the manifest."""
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        arrays = _tensors(batch, whole=self._reads_words)
        labels = arrays["y"].reshape(-1)
        self._train_mode()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            logits, embedding = self._forward(arrays)
        rows = logits.reshape(len(labels), -1)
        if self._shown is not None:
            rows = self._shown(rows, self._sides)
        loss = functional.cross_entropy(rows, labels)
        if self._penalty is not None:
            loss = loss + self._penalty(self._module, rows, embedding, arrays, self._sides)
        self._optimizer.zero_grad()
        loss.backward()
        if self._options.clip_norm is not None:
            nn.utils.clip_grad_norm_(self._trained.values(), self._options.clip_norm)
        self._optimizer.step()
        return StepResult(loss=loss.item(), correct=int((rows.argmax(1) == labels).sum()))

    def predict(self, batch: Tensors) -> tuple[Array, Array]:
        """Logits and embedding in evaluation mode."""
        self._module.eval()
        with torch.no_grad():
            logits, embedding = self._forward(_tensors(batch, whole=self._reads_words))
        return logits.numpy(), embedding.numpy()

    def weights(self) -> Tensors:
        """Copies of the trainable parameters and the buffers."""
        return _arrays({**self._trained, **self._buffers})

    def snapshot(self) -> Tensors:
        """Weights and optimizer state, named as the slots of an artifact."""
        return {**self.weights(), **_arrays(self._state())}

    def restore(self, slots: Tensors) -> None:
        """Continue from a snapshot."""
        self._optimizer = self._fresh_optimizer()
        state = self._state()
        self._fill({**self._trained, **self._buffers, **state}, slots)
        for name, parameter in self._trained.items():
            for key, prefix in self._state_keys().items():
                self._optimizer.state[parameter][key] = state[f"{prefix}/{name}"]
            if STEP in state:
                self._optimizer.state[parameter]["step"] = state[STEP].clone()

    def _fresh_optimizer(self) -> torch.optim.Optimizer:
        options, parameters = self._options, list(self._trained.values())
        if options.kind == "sgd":
            return torch.optim.SGD(
                parameters, lr=0.0, momentum=options.momentum, weight_decay=options.weight_decay, foreach=False
            )
        made = torch.optim.Adam if options.kind == "adam" else torch.optim.AdamW
        return made(
            parameters,
            lr=0.0,
            betas=(options.beta1, options.beta2),
            eps=options.eps,
            weight_decay=options.weight_decay,
            foreach=False,
        )

    def _state_keys(self) -> dict[str, str]:
        if self._options.kind == "sgd":
            return _STATE["sgd"] if self._options.momentum else {}
        return _STATE["adam"]

    def _state(self) -> dict[str, Tensor]:
        """Optimizer state by slot name; zeros before the first step."""
        state: dict[str, Tensor] = {}
        for name, parameter in self._trained.items():
            kept = self._optimizer.state.get(parameter, {})
            for key, prefix in self._state_keys().items():
                state[f"{prefix}/{name}"] = kept.get(key, torch.zeros_like(parameter))
            if self._options.kind != "sgd":
                state[STEP] = kept.get("step", torch.zeros(()))
        return state

    def _forward(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        logits = self._module(*(value for name, value in batch.items() if name != "y"))
        if isinstance(logits, tuple):
            logits = logits[-1]
        return logits, self._seen.flatten(1)

    def _see(self, layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        # A head with several exits reads several; the last one counts, as in the graph.
        self._seen = inputs[0][-1] if isinstance(inputs[0], tuple | list) else inputs[0]

    def _train_mode(self) -> None:
        """Training mode, but for layers whose parameters are all frozen: their statistics are part of the base."""
        self._module.train()
        for layer in self._module.modules():
            own = list(layer.parameters(recurse=False))
            if own and not any(value.requires_grad for value in own):
                layer.eval()

    def _fill(self, targets: Mapping[str, Tensor], values: Tensors) -> None:
        if targets.keys() != values.keys():
            wrong = sorted(targets.keys() ^ values.keys())
            raise BadBlob(f"tensors do not fit the module: {wrong[:5]} are missing or unexpected")
        with torch.no_grad():
            for name, target in targets.items():
                if tuple(target.shape) != values[name].shape or values[name].dtype != np.float32:
                    raise BadBlob(
                        f"{name} is {values[name].dtype} {list(values[name].shape)} "
                        f"but the module takes float32 {list(target.shape)}"
                    )
                target.copy_(torch.tensor(values[name]))


def _last_layer(module: nn.Module) -> nn.Module:
    """The layer whose input is the embedding: the head, else the last linear layer, else the module itself."""
    head = getattr(module, "head", None)
    if isinstance(head, nn.Module):
        return head
    linear = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
    return linear[-1] if linear else module


def _reads_words(module: nn.Module) -> bool:
    """Whether a batch's `x` are word numbers: as the module declares, else when it looks them up first."""
    declared = getattr(module, "inputs", None)
    if callable(declared):
        return bool(declared()[0].dtype == "int64")
    leaves = [layer for layer in module.modules() if not list(layer.children())]
    return bool(leaves) and isinstance(leaves[0], nn.Embedding | nn.EmbeddingBag)


def _tensors(batch: Tensors, *, whole: bool) -> dict[str, Tensor]:
    """The batch with `x` of the type that the module takes."""
    if whole and batch["x"].dtype.kind == "f":
        raise DataError("batch input 'x' holds fractions but the model takes whole numbers; save them as integers")
    batch = batch | {"x": batch["x"].astype(np.int64 if whole else np.float32, copy=False)}
    # Copies, because a memory-mapped array is read-only and torch wants none such.
    found = {name: torch.tensor(array) for name, array in batch.items()}
    if any(len(value) == 0 for name, value in found.items() if name != EDGES):
        raise DataError("batch is empty; give at least one sample")
    return found


def _arrays(values: Mapping[str, Tensor]) -> Tensors:
    return {name: value.detach().cpu().numpy().copy() for name, value in values.items()}
