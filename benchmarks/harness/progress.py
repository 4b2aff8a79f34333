"""A bar with the time that is left, for suites that go through a list of long things; only on a terminal."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

Item = TypeVar("Item")


def stepped(items: Sequence[Item], what: str) -> Iterator[Item]:
    """The items one by one, with how many are done and how long the others will take."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        bar = progress.add_task(what, total=len(items))
        for item in items:
            yield item
            progress.advance(bar)
