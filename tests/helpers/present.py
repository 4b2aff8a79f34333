"""What a test knows to be there, told to the type checker and found out at once when it is not."""

from typing import TypeVar

T = TypeVar("T")


def present(value: T | None) -> T:
    """The value, which is not None."""
    assert value is not None
    return value
