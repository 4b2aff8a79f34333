"""A program that torch.export captured, as a Graph; importing this package registers how its operators are written."""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
