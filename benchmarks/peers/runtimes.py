"""Runtimes that train the same step, each in an environment of its own in the per-user cache."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedwright.protocol.errors import ConfigError
from fedwright.protocol.support.steps import counted
from fedwright.simulation.datasets.files import cache_folder

JAX, TRAINING, COMPILED = "jax", "onnxruntime-training", "torch.compile"
# What is installed, and the file that says so when it is there.
WANTED: Mapping[str, tuple[str, ...]] = {
    JAX: ("jax==0.10.0", "onnx==1.23.2"),
    TRAINING: ("onnxruntime-training-cpu==1.19.2", "onnx==1.23.2"),
}
PROGRAM = Path(__file__).parents[1] / "processes" / "peer_step.py"


def environment(kind: str) -> Path:
    """Python of that runtime's environment, made once; ConfigError if it cannot be made here."""
    folder = cache_folder().parent / "bench" / f"{kind}-{sys.version_info.major}.{sys.version_info.minor}"
    python, done = folder / "bin" / "python", folder / "installed.json"
    if done.exists() and tuple(json.loads(done.read_text())) == WANTED[kind]:
        return python
    _run("made", sys.executable, "-m", "venv", "--clear", str(folder))
    for package in counted(list(WANTED[kind]), f"installing {kind}"):
        _run("installed", str(python), "-m", "pip", "install", "-q", "--no-input", package)
    done.write_text(json.dumps(WANTED[kind]))
    return python


def _run(what: str, *command: str) -> None:
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        said = (made.stderr or made.stdout).strip().splitlines() or ["nothing"]
        raise ConfigError(f"cannot be {what} here: {said[-1][-200:]}")


def measure(kind: str, folder: Path, seconds: float, *, timeout_s: float) -> dict[str, Any]:
    """What a peer's process printed; ConfigError with its last words if it failed."""
    command = [str(environment(kind)), "-W", "ignore", str(PROGRAM), kind, str(folder), str(seconds)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired as err:
        raise ConfigError(f"took longer than {timeout_s:g} s") from err
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["nothing"]
        raise ConfigError(f"cannot train this model: {said[-1][-200:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result
