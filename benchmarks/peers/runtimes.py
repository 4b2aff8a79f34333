"""Runtimes that train the same step, each in an environment of its own in the per-user cache."""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedwright.benchmarks.harness.public_libraries import environment_of
from fedwright.protocol.errors import ConfigError

JAX, TRAINING, COMPILED = "jax", "onnxruntime-training", "torch.compile"
WANTED: Mapping[str, tuple[str, ...]] = {
    JAX: ("jax==0.10.0", "onnx==1.23.2"),
    TRAINING: ("onnxruntime-training-cpu==1.19.2", "onnx==1.23.2"),
}
PROGRAM = Path(__file__).parents[1] / "processes" / "peer_step.py"


def measure(kind: str, folder: Path, seconds: float, *, timeout_s: float) -> dict[str, Any]:
    """What a peer's process printed; ConfigError with its last words if it failed."""
    python = environment_of(kind, WANTED[kind], alone=True)
    command = [str(python), "-W", "ignore", str(PROGRAM), kind, str(folder), str(seconds)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired as err:
        raise ConfigError(f"took longer than {timeout_s:g} s") from err
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["nothing"]
        raise ConfigError(f"cannot train this model: {said[-1][-200:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result
