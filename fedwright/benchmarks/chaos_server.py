"""The server process of `bench chaos`: the command `fedwright` with one more method, which keeps books.

The books are part of the method's state, so they say what is in a state that was kept: what a killed process had
folded in and not made durable is gone from both.
"""

import sys

import numpy as np

from fedwright.server_runtime.methods.base import Absorbed, Entry, Relay, Setting, Tensors, register
from fedwright.server_runtime.methods.baselines.fedavg import FedAvg, FedAvgParams

NAME = "fedavg-with-books"
BOOKS = "absorbed_tasks"


class Bookkeeper(FedAvg):
    """FedAvg that writes down the task of every update it folds in."""

    def __init__(self, params: FedAvgParams, setting: Setting) -> None:
        super().__init__(params, setting)
        self._tasks: list[str] = []

    def absorb(self, device: str, reply: Absorbed) -> Relay | None:
        """See Method."""
        self._tasks += reply.tasks
        return super().absorb(device, reply)

    def state(self) -> Tensors:
        """See Method."""
        return {**super().state(), BOOKS: np.frombuffer("\n".join(self._tasks).encode(), np.uint8)}

    def restore(self, state: Tensors) -> None:
        """See Method."""
        weights, self._tasks = split_books(state)
        super().restore(weights)


def split_books(state: Tensors) -> tuple[Tensors, list[str]]:
    """A state without its books, and every task that was folded into it, as often as that happened."""
    rest = {name: value for name, value in state.items() if name != BOOKS}
    return rest, state[BOOKS].tobytes().decode().split()


def main() -> int:
    """`fedwright` where one may name this method."""
    from fedwright.cli.main import main as command

    register(Entry(NAME, "FedAvg that keeps books", FedAvgParams, Bookkeeper))
    return command()


if __name__ == "__main__":
    sys.exit(main())
