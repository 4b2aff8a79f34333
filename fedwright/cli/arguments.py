"""Kinds of arguments that several commands take."""

import argparse
from pathlib import Path


def new_file(text: str) -> Path:
    """A file that can be written; checked before the work is done, not after."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is a folder; name a file")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {path.parent} to write {path.name} into; make it first")
    return path
