"""A cached virtual environment with onnxruntime-training, which cannot share one with onnxruntime."""

import shutil
import sys
from pathlib import Path

from helpers.tools import CONSTRAINTS, cached, extra_requirements, make_environment, missing, pip_install

# The newest Python that onnxruntime-training has wheels for.
VERSION = (3, 11)


def classic_python(wheel: Path) -> Path:
    """The interpreter of an environment with what the wheel's extra `classic` asks for (not the wheel itself)."""
    base = sys.executable if sys.version_info[:2] == VERSION else shutil.which("python3.11")
    if base is None:
        missing("python3.11 is not installed; onnxruntime-training has no wheels for newer ones")
    requirements = extra_requirements(wheel, "classic", python_version="3.11")
    recipe = [base, CONSTRAINTS.read_text(), *requirements]

    def build(folder: Path) -> None:
        pip_install(make_environment(folder, python=base), *requirements)

    return cached("classic", recipe, build) / "bin" / "python"
