"""Public architectures of `fedwright bench world`, each in a child process of its own.

The architecture is made with random weights, built into an artifact, checked as a device checks it, and trained for
three steps by the device's own trainer; torch trains twins in float64 (the truth) and float32 (the yardstick).
"""

import copy
import importlib
import json
import os
import re
import resource
import select
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from fedwright.device_runtime.train.check import check_artifact
from fedwright.device_runtime.train.portable import PortableTrainer
from fedwright.protocol.artifact import Artifact, pack
from fedwright.protocol.errors import FedwrightError
from fedwright.server_runtime.artifacts.builder import build, initial_weights
from fedwright.server_runtime.spec import ModelSpec, Structure
from fedwright.server_runtime.zoo.base import Input

CLASSES, BATCH, STEPS, RATE = 5, 4, 3, 0.01
# One unit near zero on the other side of an activation changes a gradient by a hundredth. That is chance, in torch as
# here, and another seed tells it from a mistake, which shows with every seed.
SEEDS = 3
LARGEST_RATIO = 2.0
# Differences of the weights' changes that float32 cannot tell from none, and of first losses that no mistake is behind.
SAME_CHANGE, SAME_LOSS = 1e-4, 1e-4
# Entries that are compared at a time.
PIECE = 1 << 20


class Logits(nn.Module):
    """A model of transformers as a function of one input to logits; `pick` names the output, `at` where it is fed."""

    def __init__(self, model: nn.Module, spec: Mapping[str, Any]) -> None:
        super().__init__()
        self.model = model
        self._shape, self._whole = tuple(spec["shape"]), spec["input"] == "tokens"
        self._pick, self._at = spec.get("pick", "logits"), spec.get("at")

    def inputs(self) -> list[Input]:
        """One batch of tokens, or of what a sensor gave."""
        return [Input("x", (-1, *self._shape), "int64" if self._whole else "float32")]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The logits alone."""
        found = self.model(**{self._at: x}) if self._at else self.model(x)
        picked = found[self._pick] if isinstance(found, Mapping) else found
        return picked if isinstance(picked, torch.Tensor) else picked[0]


def make(spec: Mapping[str, Any]) -> nn.Module:
    """The module that an entry of the suite's list describes, with nothing random left in it."""
    options = dict(spec.get("options", {}))
    library = importlib.import_module(spec["library"])
    module: nn.Module
    if spec["library"] == "torchvision":
        module = library.models.get_model(spec["model"], weights=None, num_classes=CLASSES, **options)
    elif spec["library"] == "timm":
        module = library.create_model(spec["model"], num_classes=CLASSES, **options)
    else:
        family = re.split("For(?=[A-Z])|LMHead|EncoderModel", spec["model"])[0]
        config = getattr(library, f"{family}Config")(num_labels=CLASSES, **options)
        config._attn_implementation = "eager"
        for key in [key for key, value in vars(config).items() if "drop" in key and isinstance(value, float)]:
            setattr(config, key, 0.0)
        module = Logits(getattr(library, spec["model"])(config), spec)
    _make_certain(module)
    # Everything is trained, also what a library would leave as it is.
    return module.requires_grad_(True)


def _make_certain(module: nn.Module) -> None:
    """No dropout, no dropped paths: torch and the graph draw other numbers."""
    for layer in module.modules():
        for name, value in list(vars(layer).items()):
            chance = "drop" in name or (name == "p" and "drop" in type(layer).__name__.lower())
            if (chance and isinstance(value, float)) or (name == "p" and "Stochastic" in type(layer).__name__):
                setattr(layer, name, 0.0)


def batch_of(spec: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Random inputs and labels; a model that answers at every place has labels at every place."""
    rng = np.random.default_rng(seed)
    shape = (BATCH, *spec["shape"])
    whole = spec["input"] == "tokens"
    x = rng.integers(3, spec.get("words", 50), shape) if whole else rng.standard_normal(shape).astype(np.float32)
    places = shape[1:2] if spec.get("everywhere") else ()
    return {"x": x, "y": rng.integers(0, spec.get("classes", CLASSES), (BATCH, *places))}


def torch_steps(module: nn.Module, batch: dict[str, Any], dtype: torch.dtype) -> tuple[list[float], dict[str, Any]]:
    """Losses and the change of every parameter after the steps."""
    # Some models make constants of the default type on their way.
    torch.set_default_dtype(dtype)
    twin = copy.deepcopy(module).to(dtype).train()
    optimizer = torch.optim.SGD(twin.parameters(), RATE)
    x, labels = torch.from_numpy(batch["x"]), torch.from_numpy(batch["y"]).flatten()
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        logits = twin(x.to(dtype) if x.is_floating_point() else x)
        loss = functional.cross_entropy(logits.flatten(0, -2), labels)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    torch.set_default_dtype(torch.float32)
    old = dict(module.named_parameters())
    return losses, {
        name: _change(value.detach().numpy(), old[name].detach().numpy()) for name, value in twin.named_parameters()
    }


def _change(new: NDArray[Any], old: NDArray[Any]) -> NDArray[np.float32]:
    """new - old; kept in float32 and made in pieces, because the largest models have a hundred million weights."""
    made = np.empty(new.shape, np.float32)
    for to, after, before in zip(*(_pieces(array) for array in (made, new, old)), strict=True):
        np.subtract(after, before, out=to, dtype=np.float64, casting="same_kind")
    return made


def _pieces(array: NDArray[Any]) -> list[NDArray[Any]]:
    return np.array_split(array.reshape(-1), max(1, array.size // PIECE))


def device_steps(artifact: Artifact, weights: dict[str, Any], batch: dict[str, Any]) -> tuple[list[float], Any]:
    """The same, by the trainer that devices use."""
    trainer = PortableTrainer(artifact, threads=1)
    slots = [slot.name for slot in artifact.manifest.slots if slot.role != "optimizer"]
    trainer.load({name: weights[name] for name in slots})
    losses = [float(trainer.step(batch, learning_rate=RATE, seed=0).loss) for _ in range(STEPS)]
    found = trainer.weights()
    return losses, {name: _change(found[name], weights[name]) for name in slots}


def distance(found: dict[str, Any], wanted: dict[str, Any]) -> float:
    """How far the changes are from the wanted ones, relative to these."""
    wrong = right = 0.0
    for name in wanted:
        for ours, truth in zip(_pieces(found[name]), _pieces(wanted[name]), strict=True):
            wrong += float(np.sum((ours - truth) ** 2, dtype=np.float64))
            right += float(np.sum(truth**2, dtype=np.float64))
    return float((wrong / max(right, 1e-300)) ** 0.5)


def compare(spec: Mapping[str, Any], artifact: Artifact, seed: int) -> dict[str, Any]:
    """Three steps of one seed on the device's side and in torch."""
    torch.manual_seed(seed)
    module, batch = make(spec), batch_of(spec, seed)
    losses, wanted = torch_steps(module, batch, torch.float64)
    _, single = torch_steps(module, batch, torch.float32)
    ours, found = device_steps(artifact, initial_weights(module), batch)
    error, yardstick = distance(found, wanted), distance(single, wanted)
    off = abs(ours[0] - losses[0]) / max(abs(losses[0]), 1e-12)
    holds = error <= max(SAME_CHANGE, LARGEST_RATIO * yardstick) and off <= SAME_LOSS
    return {"agrees": bool(holds), "error": error, "torch_error": yardstick, "loss_error": off}


def measure(spec: Mapping[str, Any]) -> dict[str, Any]:
    """All that is told of one architecture; `reason` says in one sentence why it does not build or agree."""
    torch.manual_seed(0)
    module = make(spec)
    row: dict[str, Any] = {"parameters": sum(p.numel() for p in module.parameters()), "built": False, "agrees": False}
    structure = Structure(ModelSpec(f"python:world:{spec['name']}", tuple(spec["shape"]), spec.get("classes", CLASSES)))
    started = time.process_time()
    try:
        artifact = build(structure, module)
        row["build_s"] = time.process_time() - started
        row["artifact_bytes"] = len(pack(artifact))
        check_artifact(artifact, batch=BATCH)
        row["built"] = True
        for seed in range(SEEDS):
            row |= compare(spec, artifact, seed)
            if row["agrees"]:
                return row | {"seeds": seed + 1}
    except FedwrightError as err:
        return row | {"reason": f"{type(err).__name__}: {err}"}
    worse = row["error"] / max(row["torch_error"], 1e-300)
    return row | {"reason": f"changes {row['error']:.1e} from float64, {worse:.1f} times torch's, with every seed"}


def main(words: list[str]) -> int:
    """`MEMORY_BYTES CPU_S WALL_S`: limits of each; specs come as lines of JSON, rows go out in the same way.

    Each is measured in a child of its own, which has the libraries imported already.
    """
    memory_bytes, cpu_s, wall_s = (int(word) for word in words)
    torch.set_num_threads(1)
    for line in sys.stdin:
        spec = json.loads(line)
        with suppress(ImportError):
            importlib.import_module(spec["library"])
        row = measure_apart(spec, memory_bytes=memory_bytes, cpu_s=cpu_s, wall_s=wall_s)
        sys.stdout.write(json.dumps(row) + "\n")
        sys.stdout.flush()
    return 0


def measure_apart(spec: Mapping[str, Any], *, memory_bytes: int, cpu_s: int, wall_s: int) -> dict[str, Any]:
    """The row of a child process; one that dies or takes too long is a failure with that reason."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
        _answer(spec, writing)
    os.close(writing)
    said, ended = b"", time.monotonic() + wall_s
    while (left := ended - time.monotonic()) > 0 and select.select([reading], [], [], left)[0]:
        part = os.read(reading, 1 << 16)
        if not part:
            break
        said += part
    if left <= 0:
        os.kill(child, signal.SIGKILL)
    os.close(reading)
    _, status = os.waitpid(child, 0)
    if said:
        row: dict[str, Any] = json.loads(said)
        return row
    why = f"took longer than {wall_s} s" if left <= 0 else f"its process ended with {os.waitstatus_to_exitcode(status)}"
    return {"built": False, "agrees": False, "reason": why}


def _answer(spec: Mapping[str, Any], writing: int) -> NoReturn:
    """In the child: measure, write the row, end."""
    try:
        row = measure(spec)
    except Exception as err:  # noqa: BLE001 (what a library raises is a result of the suite)
        row = {"built": False, "agrees": False, "reason": f"{type(err).__name__}: {str(err)[:300]}"}
    os.write(writing, json.dumps(row).encode())
    os._exit(0)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
