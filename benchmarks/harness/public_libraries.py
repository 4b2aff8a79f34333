"""An environment of its own with torchvision, timm and transformers, beside the torch that is here already."""

import json
import site
import subprocess
import sys
from pathlib import Path

from fedwright.protocol.errors import ConfigError
from fedwright.protocol.support.steps import counted
from fedwright.simulation.datasets.files import cache_folder

LIBRARIES = ("torchvision==0.28.0", "timm==1.0.30", "transformers==5.22.2")
# What these import, named one by one: their declared requirements would bring another torch, with CUDA.
BESIDE = (
    "huggingface-hub==2.4.0",
    "tokenizers==0.23.3",
    "hf-xet",
    "httpx2",
    "httpcore2",
    "anyio",
    "h11",
    "idna",
    "sniffio",
    "truststore",
    "certifi",
    "pillow",
    "pyyaml",
    "regex",
    "requests",
    "safetensors",
    "tqdm",
)
# torchvision's wheel is built for CUDA: its compiled operators do not load beside torch for CPUs, and this file, which
# describes them, ends the import. The classifiers need none of them.
UNWANTED = "torchvision/_meta_registrations.py"


def environment() -> Path:
    """Python of that environment, made once in the per-user cache; ConfigError if it cannot be made."""
    return environment_of("public", (*LIBRARIES, *BESIDE), unwanted=UNWANTED)


def environment_of(name: str, packages_of: tuple[str, ...], *, alone: bool = False, unwanted: str = "") -> Path:
    """Python of an environment with these packages, without what they require, beside what is here.

    alone: with what they require, and nothing of what is here. unwanted: a module to empty.
    """
    folder = cache_folder().parent / "bench" / f"{name}-{sys.version_info.major}.{sys.version_info.minor}"
    python, done = folder / "bin" / "python", folder / "installed.json"
    here = [path for path in sys.path if path.endswith("site-packages")] or site.getsitepackages()
    beside, more = ([], []) if alone else (here, ["--no-deps"])
    recipe = [*packages_of, *beside]
    if done.exists() and json.loads(done.read_text()) == recipe:
        return python
    _run(sys.executable, "-m", "venv", "--clear", str(folder))
    packages = next(folder.glob("lib/python*/site-packages"))
    lines = [f"import site; site.addsitedir({path!r})" for path in beside]
    (packages / "beside.pth").write_text("\n".join(lines) + "\n")
    # One by one, so that a person sees how many are left.
    for package in counted(packages_of, f"installing {name} libraries"):
        _run(str(python), "-m", "pip", "install", "-q", "--no-input", *more, package)
    if unwanted:
        (packages / unwanted).write_text("")
    done.write_text(json.dumps(recipe))
    return python


def _run(*command: str) -> None:
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        said = (made.stderr or made.stdout).strip().splitlines() or ["nothing"]
        raise ConfigError(f"an environment of other libraries cannot be made here; pip said: {said[-1]}")
