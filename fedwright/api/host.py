"""What a host lacks that is to run servers and simulations, one finding at a time."""

import importlib.util
import os
import platform
import shutil
import sys
from importlib import metadata
from pathlib import Path

from fedwright.device_runtime.doctor import OLDEST_PYTHON, Finding, compression
from fedwright.protocol.link.broker import find_mosquitto

PACKAGES = (
    "numpy",
    "onnxruntime",
    "onnx",
    "torch",
    "paho-mqtt",
    "msgspec",
    "safetensors",
    "rich",
    "scipy",
)
INSTALL = 'pip install "fedwright[server]"'
WARN_FREE_BYTES = 2e9
WARN_DISK_BYTES = 5e9


def diagnose_host(runs: Path) -> list[Finding]:
    """One finding for each thing that a host depends on; runs: where it keeps them."""
    packages = [_package(name) for name in PACKAGES]
    return [_python(), *packages, compression(), _accelerator(), _broker(), _memory(), _disk(runs), _data()]


def _python() -> Finding:
    found = f"Python {platform.python_version()} at {sys.executable}"
    if sys.version_info < OLDEST_PYTHON:
        return Finding("fail", found, "install Python 3.10 or newer")
    return Finding("ok", found)


def _package(name: str) -> Finding:
    try:
        return Finding("ok", f"{name} {metadata.version(name)}")
    except metadata.PackageNotFoundError:
        return Finding("fail", f"{name} is not installed", INSTALL)


def _accelerator() -> Finding:
    """Whether the server's maths has a GPU; nothing here needs one."""
    if importlib.util.find_spec("torch") is None:
        return Finding("fail", "the server's maths needs torch", INSTALL)
    import torch

    if torch.cuda.is_available():
        return Finding("ok", f"the server computes on {torch.cuda.get_device_name()}")
    return Finding("ok", "the server computes on the CPU: torch sees no CUDA")


def _broker() -> Finding:
    found = find_mosquitto()
    if found:
        return Finding("ok", f"mosquitto at {found}")
    return Finding("warn", "mosquitto is not installed; amqtt takes its place and is slower", "apt install mosquitto")


def _memory() -> Finding:
    import psutil

    free_bytes = psutil.virtual_memory().available
    what = f"{os.cpu_count()} cores, {free_bytes / 1e9:.1f} GB of memory free"
    if free_bytes < WARN_FREE_BYTES:
        return Finding("warn", what, "close other programs, or simulate with fewer processes")
    return Finding("ok", what)


def _disk(runs: Path) -> Finding:
    place = runs.resolve()
    while not place.exists():
        place = place.parent
    if not os.access(place, os.W_OK):
        return Finding("fail", f"{place} cannot be written", "name another folder in run.folder")
    free_bytes = shutil.disk_usage(place).free
    what = f"{free_bytes / 1e9:.1f} GB free for {runs}"
    return Finding("warn", what, "free some space") if free_bytes < WARN_DISK_BYTES else Finding("ok", what)


def _data() -> Finding:
    from fedwright.simulation.datasets import available

    here = [info.name for info in available() if info.place]
    return Finding("ok", f"data sets that are here: {', '.join(here) or 'none'}")
