"""From a device's budget to its part of a round: the largest of a method's sizes that the device can do.

A size is anything in order: widths, mask ratios, shrinkage ratios, adapter ranks, depths, blocks. `make` turns one into
the assignment that a device would get; what that costs is known from its artifact's manifest, the device's report and
what was measured of its speed. Where the run prefers slower devices to smaller models, each size is tried in all forms
that take less memory (memory_forms.py). Where not even the smallest fits into memory, its batch shrinks.

    sizes = (0.25, 0.5, 1.0)                                  # smallest first
    fit = largest_fitting(setting, device, report=report, sizes=sizes, make=lambda size: self._assignment(device, size))
    if fit is None: ...                                       # the device cannot take part; `Left` says so once
    fit.size, fit.assignment
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from msgspec import structs

from fedwright.protocol.messages import Report
from fedwright.protocol.predictor import need_bytes
from fedwright.protocol.support.steps import counted
from fedwright.server_runtime.blocks.budget import Budget, Cost, largest, largest_choice, task_cost
from fedwright.server_runtime.methods.base import Assignment, MethodState, Setting
from fedwright.server_runtime.methods.shared.memory_forms import leaner_forms

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True)
class BudgetFit(Generic[T]):
    """A size and the assignment it means; its batch may be smaller than the run's."""

    size: T
    assignment: Assignment


def budget_of(setting: Setting, report: Report) -> Budget:
    """What a device may use in one round: its free memory, its owner's limits and the run's."""
    return setting.budget.within(Budget(report.free_bytes, report.round_s, report.round_bytes))


def divided(setting: Setting, report: Report, tasks: int) -> Report:
    """The report of a device that does so many tasks in one round: each may take its part of seconds and bytes."""
    budget = budget_of(setting, report)
    seconds = None if budget.seconds is None else budget.seconds / tasks
    link = None if budget.link_bytes is None else max(1, budget.link_bytes // tasks)
    return structs.replace(report, round_s=seconds, round_bytes=link)


def cost_of(setting: Setting, device: str, *, report: Report, assignment: Assignment, sent_ratio: float = 1.0) -> Cost:
    """What an assignment costs a device; nothing where nobody builds artifacts, no time for a device of unknown speed.

    sent_ratio: share of the model's entries that travel to the device.
    """
    if setting.manifest is None:
        return Cost()
    manifest, recipe = setting.manifest(assignment.structure), assignment.recipe
    known = setting.forecasts
    ahead = None if known is None else known.predict(device, manifest, batch=recipe.batch, part=recipe.part)
    cost = task_cost(
        manifest,
        recipe,
        returns=assignment.returns,
        data=report.data,
        step_s=0.0 if ahead is None else ahead.step_s,
        sent_ratio=sent_ratio,
    )
    rate = None if setting.forecasts is None else setting.forecasts.bytes_per_s(device)
    return cost if not rate else replace(cost, seconds=cost.seconds + cost.link_bytes / rate)


def fits(setting: Setting, device: str, *, report: Report, assignment: Assignment, sent_ratio: float = 1.0) -> bool:
    """Whether a device can do an assignment within its budget."""
    cost = cost_of(setting, device, report=report, assignment=assignment, sent_ratio=sent_ratio)
    return cost.fits(budget_of(setting, report))


def largest_fitting(
    setting: Setting,
    device: str,
    *,
    report: Report,
    sizes: Sequence[T],
    make: Callable[[T], Assignment],
    sent_ratio: Callable[[T], float] = lambda size: 1.0,
) -> BudgetFit[T] | None:
    """The last of the sizes, smallest first, within the device's memory, seconds and bytes; None when none is.

    When not even the smallest fits into memory, the smallest at the largest batch that does.
    """
    budget = budget_of(setting, report)
    setting.prepare(make(size).structure for size in sizes)
    formed: dict[int, Assignment] = {}

    def price(assignment: Assignment, sent: float) -> Cost:
        if budget.seconds is None and budget.link_bytes is None:
            # What nothing limits need not be forecast.
            return Cost(memory_of(setting, assignment))
        return cost_of(setting, device, report=report, assignment=assignment, sent_ratio=sent)

    def cost(index: int) -> Cost:
        for form in _forms(setting, report, make(sizes[index])):
            found = price(form, sent_ratio(sizes[index]))
            if found.fits(budget):
                formed[index] = form
                break
        return found

    place = largest_choice(range(len(sizes)), cost, budget)
    if place is not None:
        return BudgetFit(sizes[place], formed[place])
    if not sizes:
        return None
    smallest = make(sizes[0])
    room = report.free_bytes if budget.memory_bytes is None else budget.memory_bytes
    less = smaller_batch(setting, smallest, room)
    if less is None or not fits(setting, device, report=report, assignment=less, sent_ratio=sent_ratio(sizes[0])):
        return None
    return BudgetFit(sizes[0], less)


def _forms(setting: Setting, report: Report, assignment: Assignment) -> Iterator[Assignment]:
    """The ways to do an assignment, fastest first."""
    if not setting.slower or not report.parts or setting.manifest is None:
        yield assignment
        return
    yield from leaner_forms(setting.manifest, assignment)


def fit_batch(setting: Setting, device: str, *, report: Report, assignment: Assignment) -> Assignment | None:
    """The assignment of a method with one size, at the largest batch within the device's budget; None when none is."""
    found = largest_fitting(setting, device, report=report, sizes=(1.0,), make=lambda size: assignment)
    return None if found is None else found.assignment


def fit_batches(
    setting: Setting, assignments: Mapping[str, Assignment], *, reports: Mapping[str, Report], left: "LeftOut"
) -> dict[str, Assignment]:
    """`fit_batch` for every device; those that can do nothing are left out and named."""
    found = {}
    setting.prepare(assignment.structure for assignment in assignments.values())
    for device, assignment in counted(list(assignments.items()), "planning for devices"):
        fitting = fit_batch(setting, device, report=reports[device], assignment=assignment)
        if fitting is None:
            left.out(device, setting=setting, report=reports[device])
        else:
            left.back(device)
            found[device] = fitting
    return found


def smaller_batch(setting: Setting, assignment: Assignment, free_bytes: int) -> Assignment | None:
    """The assignment at the largest batch that fits into so much memory, less than its own; None when none does."""
    if setting.manifest is None:
        return None
    manifest = setting.manifest(assignment.structure)
    batch = largest(1, assignment.recipe.batch - 1, lambda size: need_bytes(manifest, size) <= free_bytes)
    return None if batch is None else replace(assignment, recipe=structs.replace(assignment.recipe, batch=batch))


def memory_of(setting: Setting, assignment: Assignment) -> int:
    """Memory that a device asks for before it does an assignment; 0 where nobody builds artifacts."""
    if setting.manifest is None:
        return 0
    return need_bytes(setting.manifest(assignment.structure), assignment.recipe.at_once)


class ChosenSizes:
    """Which of its sizes a method last gave each device that did not get its own; a part of the method's state."""

    def __init__(self) -> None:
        self._sizes: dict[str, int] = {}

    def note(self, device: str, size: int, *, own: int) -> None:
        """Remember a choice that is not the device's own size."""
        self._sizes.pop(device, None)
        if size != own:
            self._sizes[device] = size

    def of(self, device: str, own: int) -> int:
        """The last choice, or the device's own size."""
        return self._sizes.get(device, own)

    def state(self) -> MethodState:
        """To be saved with the method, and with a plan."""
        return MethodState.of(chosen_sizes=self._sizes)

    def restore(self, state: MethodState) -> None:
        """Continue from a saved state."""
        self._sizes = state.record("chosen_sizes", dict[str, int])


@dataclass
class LeftOut:
    """Devices that can do none of a method's sizes: each is named once, and again when it could take part between."""

    _named: set[str] = field(default_factory=set)

    def out(self, device: str, *, setting: Setting, report: Report) -> None:
        """Say that a device takes no part and why."""
        if device not in self._named:
            self._named.add(device)
            budget = budget_of(setting, report)
            log.warning("device %s takes no part: nothing that this run has fits into %s", device, shown(budget))

    def back(self, device: str) -> None:
        """The device takes part again."""
        self._named.discard(device)


def shown(amounts: Budget | Cost) -> str:
    """A budget or a cost for people; what has no limit is not named."""
    parts = [
        (amounts.memory_bytes, 1e6, "MB of memory"),
        (amounts.seconds, 1.0, "s per round"),
        (amounts.link_bytes, 1e6, "MB per round"),
    ]
    return ", ".join(f"{value / unit:.1f} {name}" for value, unit, name in parts if value is not None)
