"""How torch operators are written in ONNX where torch's tracing exporter cannot, or not so that they can be trained.

Importing this package registers them all.
"""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
