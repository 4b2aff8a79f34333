"""`fedwright new NAME`: a folder with a config, a model, data and a README that runs at once."""

import argparse
from pathlib import Path

from fedwright.cli.arguments import command
from fedwright.protocol.errors import ConfigError

EXAMPLE = """example:
  fedwright new my-fleet
  cd my-fleet
  fedwright simulate run.toml
"""
MODEL = '''"""The model of this fleet: any torch module whose output is a row of logits for each example."""

from math import prod

from torch import nn


def make(*, input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """A small network; widths and depths are yours to change."""
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(input_shape), 64), nn.ReLU(), nn.Linear(64, classes))
'''
DATA = '''"""The data of this fleet. On a real device, read its own files here instead."""

import numpy as np
from sklearn.datasets import load_digits


def load() -> tuple[np.ndarray, np.ndarray]:
    """Examples x [n, ...] as float32 and labels y [n], whole numbers from 0 on."""
    digits = load_digits()
    return (digits.images[:, None] / 16).astype(np.float32), digits.target
'''
README = """# {name}

Try it on this machine, with ten simulated devices:
```
fedwright simulate run.toml
```
`my_model.py` makes the model, `my_data.py` reads the data, `run.toml` has every setting with what it means.

Over a network: `fedwright server run run.toml` here. It prints a line for the devices; run that on each of them, in a
folder with `my_data.py` and with `--data python:my_data:load` at its end. Devices need no torch and no `my_model.py`,
only what `my_data.py` imports.
"""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `new`."""
    about = "Make a folder with a config, a model, a data loader and a README; `fedwright simulate run.toml` runs it."
    new = command(subparsers, "new", "make a folder with a config, a model and data that runs at once", EXAMPLE)
    new.description = about
    new.add_argument("folder", metavar="NAME", type=Path, help="the folder to make")
    new.add_argument("--method", default="fedavg", help="a name from `fedwright methods` (default: %(default)s)")
    new.set_defaults(run=_new)


def _new(args: argparse.Namespace) -> int:
    from fedwright.api.starter import starter_config
    from fedwright.protocol.topics import check_name
    from fedwright.server_runtime.methods import registry

    folder: Path = args.folder
    name = check_name(folder.resolve().name, what="NAME")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} is there already; choose another name")
    entry = registry.find(args.method)
    changes = {"run": {"name": name}, "simulate": {"data": "python:my_data:load"}}
    # A method with a model of its own kind keeps it.
    if entry.model == "cnn-small":
        changes["model"] = {"model": "python:my_model:make"}
    files = {
        "run.toml": starter_config(entry, changes),
        "my_model.py": MODEL,
        "my_data.py": DATA,
        "README.md": README.format(name=name),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in files.items():
        (folder / file).write_text(text, encoding="utf-8")
    print(f"made {folder}: {', '.join(files)}; try it with\n\n  cd {folder} && fedwright simulate run.toml\n")
    return 0
