"""Optimizers whose steps belong together in groups: Per-FedAvg's pairs and pFedMe's inner loops, as graph nodes.

What a group must remember is optimizer state, which begins at zero with every task; a task whose steps are whole groups
ends with the weights that go back to the server.
"""

from abc import ABC, abstractmethod

from fedwright.server_runtime.artifacts.autodiff.graph import Graph, Value
from fedwright.server_runtime.artifacts.optimizer import Stepper
from fedwright.server_runtime.spec import Objective, Structure

COUNT = "optimizer/count"


def make_stepper(graph: Graph, structure: Structure) -> Stepper:
    """The optimizer's steps, or those in groups that the objective asks for."""
    objective = structure.objective
    if objective.meta_rate:
        return MetaStepper(graph, structure)
    return EnvelopeStepper(graph, structure) if objective.envelope else Stepper(graph, structure.optimizer)


class _GroupedStepper(Stepper, ABC):
    """Plain SGD that counts its steps inside a group and remembers a value of every parameter."""

    def __init__(self, graph: Graph, structure: Structure) -> None:
        super().__init__(graph, structure.optimizer)
        self._objective: Objective = structure.objective
        self._count = graph.add_input(Value(COUNT, ()))
        self._begin()

    @abstractmethod
    def _begin(self) -> None:
        """Append what all parameters share."""

    def _mixed(self, share: str, one: str, other: str) -> str:
        """share * one + (1 - share) * other, for a share of 0 or 1"""
        g = self.graph
        rest = g.op("Sub", g.scalar(1.0), share)
        return g.op("Add", g.op("Mul", one, share), g.op("Mul", other, rest))


class MetaStepper(_GroupedStepper):
    """v = w - alpha grad f(w; D), then w = w - rate grad f(v; D') for batches D and D' in turn (first order)."""

    def _begin(self) -> None:
        g = self.graph
        self._length = self._mixed(self._count, self.rate, g.scalar(self._objective.meta_rate))
        self._keep(COUNT, g.op("Sub", g.scalar(1.0), self._count, shape=()))

    def _next(self, name: str, grad: str) -> str:
        g = self.graph
        slot, before = self._state("anchor", name)
        # The count is 1 in a group's second step, which begins where the first began.
        base = self._mixed(self._count, before, self._weight(name))
        self._keep(slot, base)
        return g.op("Sub", base, g.op("Mul", self._decayed(name, grad), self._length))


class EnvelopeStepper(_GroupedStepper):
    """theta = theta - rate (grad f(theta) + lambda (theta - w)), K times; then w = w - eta lambda (w - theta)."""

    def _begin(self) -> None:
        g = self.graph
        steps = g.op("Add", self._count, g.scalar(1.0))
        self._first = g.op("Cast", g.op("Equal", self._count, g.scalar(0.0)), to=1)
        self._last = g.op("Cast", g.op("Equal", steps, g.scalar(float(self._objective.envelope_steps))), to=1)
        self._keep(COUNT, g.op("Mul", steps, g.op("Sub", g.scalar(1.0), self._last), shape=()))
        self._way = g.scalar(self._objective.envelope * self._objective.envelope_rate)

    def _next(self, name: str, grad: str) -> str:
        g, weight = self.graph, self._weight(name)
        slot, before = self._state("anchor", name)
        centre = self._mixed(self._first, weight, before)
        pull = g.op("Mul", g.op("Sub", weight, centre), g.scalar(self._objective.envelope))
        theta = g.op("Sub", weight, g.op("Mul", g.op("Add", self._decayed(name, grad), pull), self.rate))
        moved = g.op("Sub", centre, g.op("Mul", g.op("Sub", centre, theta), self._way))
        # A group ends at its moved centre, where the next one begins.
        self._keep(slot, self._mixed(self._last, moved, centre))
        return self._mixed(self._last, moved, theta)
