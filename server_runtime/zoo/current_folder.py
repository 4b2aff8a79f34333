"""Code of the user's own, found where the command is run, as `python -m` would find it."""

import importlib
import sys
from pathlib import Path
from types import ModuleType


def import_from_here(name: str) -> ModuleType:
    """Import a module from the current folder or from where Python looks anyway.

    An installed `fedwright` has the folder of its script in the path instead of the current one.
    """
    here = str(Path.cwd())
    if not {"", here} & set(sys.path):
        # It stays there: what the module imports when it is called must be found as well.
        sys.path.insert(0, here)
        importlib.invalidate_caches()
    return importlib.import_module(name)
