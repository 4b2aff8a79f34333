"""A live view in a notebook: one output of the cell that is drawn anew, where a terminal has its live table."""

import io
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

from rich.console import Console, RenderableType

# Drawn at most this often: a simulated fleet has thousands of events a second.
LEAST_S = 0.25
WIDTH = 100
PAGE = '<pre style="line-height:normal;font-family:monospace">{code}</pre>'


class NotebookView:
    """Shows what `render` gives; `refresh` after every change, `stop` takes it away."""

    def __init__(self, render: Callable[[], RenderableType]) -> None:
        self._render = render
        self._drawn_s = float("-inf")
        # Only a notebook has it, and it is untyped.
        self._tools: Any = None
        self._shown: Any = None

    def start(self) -> None:
        """Begin with an output of its own in the cell that runs."""
        self._tools = import_module("IPython.display")
        self._shown = self._tools.display(self._page(), display_id=True)
        self._drawn_s = time.monotonic()

    def refresh(self) -> None:
        """Draw it anew, unless that was done a moment ago."""
        now_s = time.monotonic()
        if self._shown is not None and now_s - self._drawn_s >= LEAST_S:
            self._drawn_s = now_s
            self._shown.update(self._page())

    def stop(self) -> None:
        """Leave nothing of it, as a live table in a terminal does."""
        if self._shown is not None:
            self._shown.update(self._tools.HTML(""))

    def _page(self) -> object:
        console = Console(file=io.StringIO(), record=True, width=WIDTH, force_jupyter=False)
        console.print(self._render())
        return self._tools.HTML(console.export_html(inline_styles=True, code_format=PAGE))
