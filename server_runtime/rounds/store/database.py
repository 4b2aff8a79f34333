"""What the SQL of the round store asks of a database: reads, and acts that happen once, wholly or not at all."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
Row = tuple[Any, ...]
Parameters = Sequence[Any]


class Conflict(Exception):
    """A row with the same key is there already."""


class DamagedStore(Exception):
    """What a store holds cannot be read."""


class Statements(Protocol):
    """SQL inside one act; `?` stands for each parameter."""

    def rows(self, query: str, parameters: Parameters = ()) -> list[Row]:
        """What a query finds."""
        ...

    def change(self, query: str, parameters: Parameters = ()) -> int:
        """How many rows a statement changed."""
        ...

    def change_each(self, query: str, parameters: Iterable[Parameters]) -> None:
        """The same statement for each of several parameters."""
        ...


class Database(Protocol):
    """A database that holds one run.

    - `act` MUST do all that its work says, or nothing, and MUST be on disk when it returns. It MAY call the work
      again after it undid what a first call did.
    - `act` MUST raise Conflict where a key stands twice.
    """

    def rows(self, query: str, parameters: Parameters = ()) -> list[Row]:
        """What a query finds, outside of any act."""
        ...

    def act(self, work: Callable[[Statements], T]) -> T:
        """Do the work as one act; what it returns."""
        ...

    def close(self) -> None:
        """Let go of files and connections."""
        ...
