"""What an artifact depends on. Equal structures share one artifact."""

import hashlib
from dataclasses import asdict, dataclass, field
from typing import Literal

import msgspec

from fedwright.protocol.goals import CLASSIFY
from fedwright.protocol.support.settings import hint


@dataclass(frozen=True)
class ModelSpec:
    """A model at a size.

    model: a zoo name or `python:module:function`. sizes: (channel group, size) pairs, empty = full size.
    goal: what it is trained for (protocol/goals.py); of numbers to predict, `classes` is how many there are.
    loss: `python:module:function`, a loss of the user's own in place of the goal's.
    links: widths of others' last layers that projections lead to, each of which counts for link_share (FedConv).
    """

    model: str
    input_shape: tuple[int, ...]
    classes: int
    sizes: tuple[tuple[str, int], ...] = ()
    links: tuple[int, ...] = ()
    link_share: float = 0.5
    goal: str = CLASSIFY
    loss: str = ""


@dataclass(frozen=True)
class Optimizer:
    """The optimizer inside the graph; the learning rate is an input and not part of the structure."""

    kind: Literal["sgd", "adam", "adamw"] = field(default="sgd", metadata=hint("sgd, adam or adamw"))
    momentum: float = field(default=0.0, metadata=hint("of sgd"))
    weight_decay: float = field(default=0.0, metadata=hint("added to the gradient; taken off the weights by adamw"))
    beta1: float = field(default=0.9, metadata=hint("of adam and adamw"))
    beta2: float = field(default=0.999, metadata=hint("of adam and adamw"))
    eps: float = field(default=1e-8, metadata=hint("of adam and adamw"))
    clip_norm: float | None = field(default=None, metadata=hint("largest norm of a step's gradient"))


@dataclass(frozen=True)
class Objective:
    """Terms added to cross-entropy; each reads its side inputs, which are constant during a task.

    proximal: mu/2 * ||w - centre||^2          side inputs `centre/<parameter>`
    prototypes: lambda * sum over classes in the batch of ||class mean embedding - prototype||
                                               side inputs `prototypes` [classes, embedding],
                                               `prototype_owned` [classes]
    distill: lambda * T^2 * KL(teacher || student) with a frozen teacher of its own structure inside the graph
                                               side inputs `teacher/<parameter>`
    match_logits: mean |logits - target|       batch input `target_logits` [-1, classes]
    masked_classes: logits of classes the device lacks are set to zero before cross-entropy
                                               side input `class_mask` [classes]
    exits: multi-exit loss with self-distillation (the module returns a tuple of logits, shallow to deep)
    fiarse: mask gradient of FIARSE            side input `threshold`
    scaler: outputs of hidden convolutions and linear layers are divided by this while training (0 = not; HeteroFL);
            models with normalisation are left as they are, because it would undo that
    element_masks: gradients and values of masked-out entries stay zero; side inputs `mask/<parameter>`
    linear: sum of <correction, w>, whose gradient is the correction (SCAFFOLD)
                                               side inputs `correction/<parameter>`
    correlate: lambda * how far logits and target are from being correlated class by class, and from being opposed
            between classes (FCCL)             batch input `target_logits` [-1, classes]
    meta_rate: steps in pairs of plain SGD: the second begins where the first did and takes the gradient from where a
            step of this length ended (Per-FedAvg)
    envelope: steps in groups of `envelope_steps`, of plain SGD on the loss + envelope/2 * ||w - start of the group||^2;
            a group then begins from its start, moved by envelope * envelope_rate of the way (pFedMe)
    """

    cross_entropy: float = 1.0
    proximal: float = 0.0
    prototypes: float = 0.0
    distill: float = 0.0
    distill_temperature: float = 1.0
    teacher: ModelSpec | None = None
    match_logits: float = 0.0
    masked_classes: bool = False
    exits: bool = False
    exit_distill: float = 0.0
    exit_temperature: float = 3.0
    fiarse: bool = False
    scaler: float = 0.0
    element_masks: bool = False
    linear: bool = False
    correlate: float = 0.0
    correlate_apart: float = 0.0
    meta_rate: float = 0.0
    envelope: float = 0.0
    envelope_steps: int = 1
    envelope_rate: float = 0.0


@dataclass(frozen=True)
class Structure:
    """Everything an artifact depends on.

    trainable: name prefixes of the parameters that train (`("",)` = all); the rest is frozen and supplied once.
    private: each sample's gradient is clipped and noise that the device draws is added to their sum.
    packing: how large frozen tensors are stored (blocks/packing.py).
    recompute: activations that are cheap to make are made again in the backward pass instead of being kept.
    parts: a batch may be done in parts whose gradients are summed, and no tensor exists twice (artifacts/in_parts.py).
    """

    spec: ModelSpec
    objective: Objective = field(default_factory=Objective)
    optimizer: Optimizer = field(default_factory=Optimizer)
    trainable: tuple[str, ...] = ("",)
    private: bool = False
    packing: Literal["float32", "int8", "int4"] = "float32"
    recompute: bool = False
    parts: bool = False

    def key(self) -> str:
        """Content hash that names the artifact in caches."""
        return hashlib.sha256(msgspec.json.encode(asdict(self), order="deterministic")).hexdigest()
