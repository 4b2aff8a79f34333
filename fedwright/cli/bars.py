"""Bars with the time that is left for work that takes long, on a terminal only."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fedwright.protocol.support.steps import listening

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


@contextmanager
def bars() -> Iterator[None]:
    """Inside the block all work of this process has a bar each; nothing is shown where there is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    progress = Progress(*columns, console=console, transient=True, refresh_per_second=4, redirect_stdout=False)
    try:
        with listening(_Bars(progress)):
            yield
    finally:
        progress.stop()


class _Bars:
    """Draws only while there is work, so that what a suite measures in between is not disturbed."""

    def __init__(self, progress: "Progress") -> None:
        self._progress = progress
        self._bars: dict[str, TaskID] = {}

    def __call__(self, what: str, done: int, of: int) -> None:
        """Take how far some work is."""
        if done < of and what not in self._bars:
            self._bars[what] = self._progress.add_task(what, total=of)
            self._progress.start()
        if what not in self._bars:
            return
        self._progress.update(self._bars[what], completed=done, refresh=done >= of)
        if done >= of:
            self._progress.remove_task(self._bars.pop(what))
            if not self._bars:
                self._progress.stop()
