"""Which changes may be summed: those of devices that trained the same part of the same model in the same way."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
from msgspec import structs

from fedwright.protocol.errors import RoundError
from fedwright.protocol.messages import Report, SumTerms, Task
from fedwright.protocol.secure.roster import MOST_MEMBERS
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
        """The same for all, but for each one's own weight."""
        return self.terms_of(next(iter(self.planned)))

    def terms_of(self, device: str) -> SumTerms:
        """One device's own."""
        terms = self.planned[device].task.sum
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
    for name, members in groups.items():
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
    alike = (task.run_key, position, blobs, planned.assignment.marks, task.returns, task.recipe.learning_rate)
    return _digest(*alike)


def _with_terms(name: str, members: Sequence[Planned], by: str, options: SecureOptions) -> list[Planned]:
    weights = {planned.device: planned.assignment.most_samples or 1 for planned in members}
    weighed = by == "samples" and options.noise_multiplier is None
    largest = max(weights.values()) if weighed else 1
    measured = members[0].task.returns.logits or members[0].task.returns.class_means
    reach = max(options.reach, MEASURED_REACH) if measured else options.reach
    terms = SumTerms(name, options.least, reach, clip_norm=options.clip_norm, largest_weight=largest)
    by = "samples" if by == "samples" else "devices"
    terms = structs.replace(terms, by=by, noise_multiplier=options.noise_multiplier)
    found = []
    for planned in members:
        own = structs.replace(terms, most_weight=weights[planned.device] if weighed else 1)
        # An edge that such a device is behind has nothing to put together.
        found.append(replace(planned, task=structs.replace(planned.task, sum=own, pool=None)))
    return found


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
