"""One measurement of `fedwright bench train-step` in a process of its own; prints one line of JSON.

`steps FOLDER THREADS SECONDS` runs portable and torch steps in turn; `compiled FOLDER SECONDS` runs torch.compile's,
once it has compiled; `peak BACKEND FOLDER THREADS STEPS` runs one backend alone and reads the highest resident memory;
`form FORM FOLDER PART STEPS` does so with a form of the artifact, or with torch (checkpointing or not), in parts;
`import MODULE` says what importing a module costs. Nothing but the backend asked for is imported.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# The clock of the process counts the work of all its threads, and no other process's.
_IMPORT_STARTED_S = time.process_time()

RATE = 0.01
LEAST_STEPS = 5
Step = Callable[[], object]


def peak_rss_bytes() -> int:
    """The highest resident memory of this process so far."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("the kernel does not tell the peak memory of a process (no VmHWM in /proc/self/status)")


def portable_step(folder: Path, threads: int, *, form: str = "portable", part: int = 0) -> Step:
    """One step of a device on the folder's artifact, weights and batch; in parts of so many samples unless 0."""
    from fedwright.device_runtime.train.portable import PortableTrainer
    from fedwright.protocol import tensors
    from fedwright.protocol.artifact import unpack

    artifact = unpack((folder / f"{form}.artifact").read_bytes())
    weights = tensors.load(folder / "weights.safetensors")
    batch = tensors.load(folder / "batch.safetensors")
    frozen = {spec.name: weights[spec.name] for spec in artifact.manifest.frozen}
    trainer = PortableTrainer(artifact, threads=threads, frozen=frozen)
    trainer.load({slot.name: weights[slot.name] for slot in artifact.manifest.slots if slot.role != "optimizer"})
    if part:
        return lambda: trainer.step_in_parts(batch, learning_rate=RATE, seed=0, part=part)
    return lambda: trainer.step(batch, learning_rate=RATE, seed=0)


def torch_step(folder: Path, threads: int, *, compiled: bool = False) -> Step:
    """The same step in torch: eager, or with model and loss compiled together."""
    import torch

    from fedwright.protocol import tensors
    from fedwright.server_runtime import zoo
    from fedwright.server_runtime.spec import ModelSpec

    torch.set_num_threads(threads)
    task = json.loads((folder / "task.json").read_text())
    spec = ModelSpec(task["model"], tuple(task["input_shape"]), task["classes"])
    module = zoo.create(spec, seed=0).train()
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name in task["trainable"])
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=RATE, momentum=task["momentum"])
    batch = {name: torch.tensor(array) for name, array in tensors.load(folder / "batch.safetensors").items()}
    labels = batch.pop("y")

    def forward() -> torch.Tensor:
        return torch.nn.functional.cross_entropy(module(*batch.values()), labels)

    loss_of = torch.compile(forward) if compiled else forward

    def step() -> object:
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


def torch_lean_step(folder: Path, *, part: int, checkpoints: bool) -> Step:
    """As `torch_step` with one thread, with gradients of parts accumulated, and blocks computed again going back."""
    from functools import partial

    import torch
    from torch.utils.checkpoint import checkpoint

    from fedwright.protocol import tensors
    from fedwright.server_runtime import zoo
    from fedwright.server_runtime.spec import ModelSpec

    torch.set_num_threads(1)
    task = json.loads((folder / "task.json").read_text())
    module = zoo.create(ModelSpec(task["model"], tuple(task["input_shape"]), task["classes"]), seed=0).train()
    for block in _blocks(module) if checkpoints else ():
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE, momentum=task["momentum"])
    batch = {name: torch.tensor(array) for name, array in tensors.load(folder / "batch.safetensors").items()}
    labels = batch.pop("y")

    def step() -> object:
        optimizer.zero_grad()
        for rows in torch.arange(len(labels)).split(part or len(labels)):
            outputs = module(*(value[rows] for value in batch.values()))
            loss = torch.nn.functional.cross_entropy(outputs, labels[rows])
            (loss * (len(rows) / len(labels))).backward()
        optimizer.step()
        return float(loss.detach())

    return step


def _blocks(module: Any) -> list[Any]:
    """The outermost modules with several layers that follow one another in a list."""
    from torch import nn

    found: list[Any] = []
    for child in module.children():
        inner = [block for block in child if len(list(block.parameters())) > 2] if _is_list(child, nn) else []
        found += inner or _blocks(child)
    return found


def _is_list(module: Any, nn: Any) -> bool:
    return isinstance(module, (nn.Sequential, nn.ModuleList))


def time_in_turn(steps: dict[str, Step], seconds: float) -> dict[str, dict[str, float]]:
    """Least CPU and wall milliseconds of each step; they take turns, so that a busy machine is unfair to none."""
    best = {name: {"cpu_ms": float("inf"), "wall_ms": float("inf")} for name in steps}
    for step in steps.values():
        step()
        step()
    ends, rounds = time.monotonic() + seconds, 0
    while rounds < LEAST_STEPS or time.monotonic() < ends:
        rounds += 1
        for name, step in steps.items():
            cpu, wall = time.process_time(), time.perf_counter()
            step()
            best[name]["cpu_ms"] = min(best[name]["cpu_ms"], (time.process_time() - cpu) * 1e3)
            best[name]["wall_ms"] = min(best[name]["wall_ms"], (time.perf_counter() - wall) * 1e3)
    return best


def peak(backend: str, folder: Path, threads: int, steps: int) -> dict[str, float]:
    """Peak memory of a process that does nothing but train."""
    step = torch_step(folder, threads) if backend == "torch" else portable_step(folder, threads)
    for _ in range(steps):
        step()
    best = time_in_turn({backend: step}, 0.0)[backend]
    return {"peak_rss_bytes": peak_rss_bytes(), **best}


def form_cost(form: str, folder: Path, part: int, steps: int) -> dict[str, float]:
    """Least CPU time of a step of this form, and the peak memory of a process that does nothing else."""
    if form.startswith("torch"):
        step = torch_lean_step(folder, part=part, checkpoints=form == "torch checkpointing")
    else:
        step = portable_step(folder, 1, form=form, part=part)
    times = []
    for _ in range(steps):
        cpu = time.process_time()
        step()
        times.append(time.process_time() - cpu)
    return {"peak_rss_bytes": peak_rss_bytes(), "cpu_ms": min(times) * 1e3}


def import_cost(module: str) -> dict[str, float]:
    """CPU seconds of the whole interpreter up to the end of the import, wall seconds of the import, peak memory."""
    wall = time.perf_counter()
    __import__(module)
    return {
        "cpu_s": time.process_time(),
        "wall_s": time.perf_counter() - wall,
        "peak_rss_bytes": peak_rss_bytes(),
        "interpreter_cpu_s": _IMPORT_STARTED_S,
    }


def main(words: list[str]) -> dict[str, Any]:
    """Do one measurement."""
    kind, *rest = words
    if kind == "import":
        return import_cost(rest[0])
    if kind == "peak":
        return peak(rest[0], Path(rest[1]), int(rest[2]), int(rest[3]))
    if kind == "form":
        return form_cost(rest[0], Path(rest[1]), int(rest[2]), int(rest[3]))
    if kind == "compiled":
        return time_in_turn({kind: torch_step(Path(rest[0]), 1, compiled=True)}, float(rest[1]))[kind]
    folder, threads, seconds = Path(rest[0]), int(rest[1]), float(rest[2])
    steps = {"portable": portable_step(folder, threads), "torch": torch_step(folder, threads)}
    return time_in_turn(steps, seconds)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(sys.argv[1:])) + "\n")
