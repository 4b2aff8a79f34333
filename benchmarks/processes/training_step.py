"""One measurement of `fedwright bench train-step` in a process of its own; prints one line of JSON.

`steps FOLDER THREADS SECONDS` runs portable and torch steps in turn; `compiled FOLDER SECONDS` runs torch.compile's,
once it has compiled; `peak BACKEND FOLDER THREADS STEPS` runs one backend alone and reads the highest resident memory;
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


def portable_step(folder: Path, threads: int) -> Step:
    """One step of a device on the folder's artifact, weights and batch."""
    from fedwright.device_runtime.train.portable import PortableTrainer
    from fedwright.protocol import tensors
    from fedwright.protocol.artifact import unpack

    artifact = unpack((folder / "portable.artifact").read_bytes())
    weights = tensors.load(folder / "weights.safetensors")
    batch = tensors.load(folder / "batch.safetensors")
    frozen = {spec.name: weights[spec.name] for spec in artifact.manifest.frozen}
    trainer = PortableTrainer(artifact, threads=threads, frozen=frozen)
    trainer.load({slot.name: weights[slot.name] for slot in artifact.manifest.slots if slot.role != "optimizer"})
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
    if kind == "compiled":
        return time_in_turn({kind: torch_step(Path(rest[0]), 1, compiled=True)}, float(rest[1]))[kind]
    folder, threads, seconds = Path(rest[0]), int(rest[1]), float(rest[2])
    steps = {"portable": portable_step(folder, threads), "torch": torch_step(folder, threads)}
    return time_in_turn(steps, seconds)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(sys.argv[1:])) + "\n")
