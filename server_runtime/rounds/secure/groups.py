"""Which changes may be summed: those of devices that trained the same part of the same model in the same way."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
from msgspec import structs

from fedwright.protocol.errors import RoundError
from fedwright.protocol.messages import Effort, Report, SumTerms, Task
from fedwright.protocol.secure.roster import MOST_MEMBERS
from fedwright.protocol.sum_messages import MOST_TIMES
from fedwright.server_runtime.methods.base import Method
from fedwright.server_runtime.rounds import events
from fedwright.server_runtime.rounds.pooled_tasks import merged_tasks
from fedwright.server_runtime.rounds.secure.options import SecureOptions
from fedwright.server_runtime.rounds.store.base import Planned, Position, Reply
from fedwright.server_runtime.rounds.task_tracker import TaskTracker

# Logits and features are larger than changes.
MEASURED_REACH = 64.0


@dataclass(frozen=True)
class Group:
    """Tasks whose changes wait on their devices to be summed."""

    name: str
    planned: Mapping[str, Planned]
    replies: Mapping[str, Reply]

    @property
    def terms(self) -> SumTerms:
        """The same for all."""
        terms = next(iter(self.planned.values())).task.sum
        assert terms is not None
        return terms

    def tasks(self) -> dict[str, str]:
        """By device."""
        return {device: planned.task.task for device, planned in self.planned.items()}


def with_sums(
    plan: Sequence[Planned],
    method: Method,
    tracker: TaskTracker,
    *,
    position: Position,
    options: SecureOptions,
) -> list[Planned]:
    """The plan, in which changes go into sums; devices whose change no sum would hide are left out and named."""
    by, observe, reports = method.pools_by(), tracker.observe, tracker.present()
    groups: dict[str, list[Planned]] = {}
    kept = []
    for planned in plan:
        if not _gives_change(planned):
            kept.append(planned)
            continue
        problem = _problem(planned, reports.get(planned.device), noise=options.noise_multiplier is not None)
        if by is None:
            problem = "the method does not average it"
        if problem is None:
            groups.setdefault(group_of(planned, position), []).append(planned)
        else:
            observe(events.Warned(f"its change cannot go into a sum: {problem}", planned.device, "left out"))
    for name, members in by_batch(groups).items():
        if not options.least <= len(members) <= MOST_MEMBERS:
            names = ", ".join(planned.device for planned in members[:5])
            text = f"{len(members)} devices ({names}) train the same part, but a sum takes {options.least}"
            observe(events.Warned(f"{text} to {MOST_MEMBERS}; they are left out of round {position.round}"))
            continue
        kept += _with_terms(name, members, by or "samples", options)
    if not kept:
        raise RoundError(
            f"nobody can take part in round {position.round}: no {options.least} devices train the same part of the "
            f"model; lower update.secure_least, use fewer sizes, or set update.secure = false"
        )
    return sorted(kept, key=lambda planned: planned.device)


def group_of(planned: Planned, position: Position) -> str:
    """The name of those whose changes may be summed with this one."""
    task = planned.task
    refs = (task.artifact, task.weights, task.sides, task.frozen, task.public)
    blobs = tuple(ref and ref.sha256 for ref in refs)
    recipe = task.recipe
    alike = (task.run_key, position, blobs, planned.assignment.marks, task.returns, recipe.learning_rate)
    return _digest(*alike, recipe.epochs, recipe.steps is None)


def by_batch(groups: Mapping[str, list[Planned]]) -> dict[str, list[Planned]]:
    """Groups in which no batch is so much smaller than another that its device, with more steps, would stand out."""
    found: dict[str, list[Planned]] = {}
    for name, members in groups.items():
        largest, part = 0, name
        for planned in sorted(members, key=lambda planned: -planned.task.recipe.batch):
            batch = planned.task.recipe.batch
            if batch * MOST_TIMES < largest:
                part = _digest(name, batch)
            if part not in found:
                found[part], largest = [], batch
            found[part].append(planned)
    return found


def effort_of(members: Sequence[Planned]) -> Effort:
    """What all in a group do."""
    recipes = [planned.task.recipe for planned in members]
    batch, epochs = max(recipe.batch for recipe in recipes), recipes[0].epochs
    steps = {recipe.steps for recipe in recipes if recipe.steps is not None}
    if len(steps) > 1:
        return Effort(batch, epochs, multiple=math.gcd(*steps))
    return Effort(batch, epochs, steps=min(steps, default=None))


def _with_terms(name: str, members: Sequence[Planned], by: str, options: SecureOptions) -> list[Planned]:
    weighed = by == "samples" and options.noise_multiplier is None
    largest = max(planned.assignment.most_samples or 1 for planned in members) if weighed else 1
    measured = members[0].task.returns.logits or members[0].task.returns.class_means
    reach = max(options.reach, MEASURED_REACH) if measured else options.reach
    terms = SumTerms(name, options.least, reach, effort_of(members), clip_norm=options.clip_norm)
    by = "samples" if by == "samples" else "devices"
    terms = structs.replace(terms, by=by, largest_weight=largest, noise_multiplier=options.noise_multiplier)
    # An edge that such a device is behind has nothing to put together.
    return [replace(one, task=structs.replace(one.task, sum=terms, pool=None)) for one in members]


def _gives_change(planned: Planned) -> bool:
    returns = planned.task.returns
    return returns.weights != "none" or returns.class_means or bool(returns.logits)


def _problem(planned: Planned, report: Report | None, *, noise: bool) -> str | None:
    returns, recipe = planned.task.returns, planned.task.recipe
    if returns.weights == "weights" or returns.masked:
        return "it is asked for more than the change of its weights"
    if recipe.classes is not None or recipe.public:
        return "it trains on other rows than all of its own"
    if report is not None and not report.sums:
        return "its agent takes part in none; update it"
    if noise and report is not None and not report.sums_noise:
        return "its agent adds no noise; update it"
    if noise and (returns.class_means or returns.logits):
        return "noise is added to changes alone"
    return None


def waiting_groups(plan: Sequence[Planned], replies: Mapping[str, Reply]) -> list[Group]:
    """Tasks whose update is here and whose change is not, by the group that they are summed in."""
    merged = merged_tasks(replies)
    found: dict[str, tuple[dict[str, Planned], dict[str, Reply]]] = {}
    for planned in sorted(plan, key=lambda planned: planned.device):
        reply, task = replies.get(planned.task.task), planned.task
        if task.sum is None or reply is None or reply.update is None or reply.update.parts or task.task in merged:
            continue
        tasks, known = found.setdefault(task.sum.group, ({}, {}))
        tasks[planned.device], known[planned.device] = planned, reply
    return [Group(name, tasks, known) for name, (tasks, known) in sorted(found.items())]


def halves(group: Group, options: SecureOptions) -> list[tuple[str, list[Planned]]]:
    """Two groups of their own, by chance; none where they would be too small, so that all of it stays left out."""
    order = sorted(group.planned.values(), key=lambda planned: _digest(group.name, planned.device))
    if len(order) < 2 * options.least:
        return []
    middle = len(order) // 2
    return [(_digest(group.name, half), part) for half, part in enumerate((order[:middle], order[middle:]))]


def with_group(task: Task, name: str) -> Task:
    """The task, to be summed in another group."""
    return task if task.sum is None else structs.replace(task, sum=structs.replace(task.sum, group=name))


def _digest(*parts: object) -> str:
    return hashlib.sha256(msgspec.msgpack.encode(parts)).hexdigest()[:32]
