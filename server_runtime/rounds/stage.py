"""What rounds in step and asynchronous ones share: settings, one stage from sending to the last reply, figures."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from fedwright.protocol.goals import MEASURES
from fedwright.server_runtime.blocks.robust import Combine
from fedwright.server_runtime.methods.base import Method, MethodState
from fedwright.server_runtime.rounds.evaluation import evaluation_plan
from fedwright.server_runtime.rounds.held_models import held_models
from fedwright.server_runtime.rounds.leave_out import LeftOutDevices
from fedwright.server_runtime.rounds.planner import Planner
from fedwright.server_runtime.rounds.secure.options import SecureOptions
from fedwright.server_runtime.rounds.size_limits import lower_median
from fedwright.server_runtime.rounds.spoilt_rounds import LOSS_BEFORE, require_quorum
from fedwright.server_runtime.rounds.store.base import Planned, Position, Reply, RoundStore, evaluation_after
from fedwright.server_runtime.rounds.task_tracker import TaskTracker

# For how many times the median device's held-out samples one device may speak.
MOST_HOLDOUT = 10


@dataclass(frozen=True)
class RoundOptions:
    """How rounds are run.

    devices: how many must be present before a round is planned. per_round, or else sample_ratio of those
    present: how many take part. quorum_ratio: share of those whose task must end in an update; what is passed
    on later in the round may get lost.
    buffer: None for rounds in step; else rounds are asynchronous and advance after this many updates.
    class_means: devices behind edges send them too, for what edges do with them.
    weight_cap: no device counts for more than so many times the samples of the median one. norm_factor: no change is
    longer than so many times the median of its stage. combine: which updates count. keep_states: how many rounds can
    be taken back; the one with the least loss stays beside them. secure: changes are seen in sums only. counts: how
    counts that devices hide are summed.
    """

    rounds: int
    devices: int
    seed: int
    per_round: int | None = None
    sample_ratio: float = 1.0
    quorum_ratio: float = 0.5
    buffer: int | None = None
    deadline_s: float = 600.0
    join_timeout_s: float = 600.0
    class_means: bool = False
    weight_cap: float | None = 10.0
    norm_factor: float | None = 5.0
    combine: Combine = field(default_factory=Combine)
    keep_states: int = 5
    secure: SecureOptions | None = None
    counts: SecureOptions = field(default_factory=SecureOptions)


def collect(
    tracker: TaskTracker,
    store: RoundStore,
    *,
    position: Position,
    plan: list[Planned],
    options: RoundOptions,
    quorum: int = 0,
) -> None:
    """Send what is open and take replies until all are in or the deadline has passed.

    With fewer updates than the quorum the stage stays open, so that a resumed run goes on waiting for it.
    """
    replies = store.replies(position)
    # A device has several tasks in the plan when it was offered less or asked again.
    devices = tuple(dict.fromkeys(planned.device for planned in plan))
    sent = [planned for planned in plan if planned.task.task not in replies]
    tracker.announce(position, devices, sent)
    tracker.hand_out(sent)
    deadline = tracker.clock() + options.deadline_s
    while tracker.out() and tracker.clock() < deadline:
        tracker.poll(deadline)
    require_quorum(store.plan(position) or plan, store.replies(position), quorum, position.round)
    late = [planned.task.task for planned in tracker.out()]
    tracker.call_in(late, detail=f"no answer within {options.deadline_s:.0f} s")
    tracker.new_replies()


def evaluate_fleet(
    tracker: TaskTracker,
    store: RoundStore,
    planner: Planner,
    *,
    method: Method,
    options: RoundOptions,
    left: LeftOutDevices,
) -> None:
    """Measure the run's models on every device that is here; a plan that an earlier process made goes on."""
    position = evaluation_after(options.rounds)
    plan = store.plan(position)
    if plan is None:
        present = tracker.present()
        left.do(method.meet, present, restart=lambda: restore_newest(method, store, planner))
        held = {} if planner.patches is None else held_models(store, position.round + 1)
        held = {device: ref for device, ref in held.items() if tracker.edge_of(device) is None}
        plan = evaluation_plan(method, planner, position, left.usable(present), held=held)
        store.save_plan(position, plan)
    collect(tracker, store, position=position, plan=plan, options=options)


def restore_newest(method: Method, store: RoundStore, planner: Planner) -> bool:
    """Put a method where the last closed stage left it; False when no stage was closed."""
    closed = store.closed()
    if closed:
        method.restore(MethodState.read(planner.blobs.path(closed[-1].state)))
    return bool(closed)


def planning_notes(method: Method) -> bytes:
    """What a method has learned while it planned, as it is kept with a plan; empty when that is nothing."""
    learned = method.planning_state()
    return learned.to_bytes() if learned else b""


def restore_planning(method: Method, notes: bytes) -> None:
    """Give a method back what it knew when it made a plan."""
    if notes:
        method.restore_planning(MethodState.read(notes))


def fleet_metrics(replies: Mapping[str, Reply]) -> dict[str, float]:
    """Accuracy of the model that was sent out and of what the devices made of it, and losses of the median device.

    Accuracy is over all held-out samples, as far as they are not many times those of the median device.
    """
    stats = [reply.update.stats for reply in replies.values() if reply.update is not None]
    metrics = {"updates": float(len(stats))}
    held_out = [one for one in stats if one.holdout]
    most = MOST_HOLDOUT * lower_median([one.holdout for one in held_out]) if held_out else 0
    for name in ("correct_before", "correct_after"):
        shares = [
            (getattr(one, name) / one.holdout, min(one.holdout, most))
            for one in held_out
            if getattr(one, name) is not None
        ]
        if shares:
            metrics[name.replace("correct", "accuracy")] = sum(share * n for share, n in shares) / sum(
                n for _, n in shares
            )
    for when in ("before", "after"):
        told = [(getattr(one, f"measures_{when}") or {}, min(one.holdout, most)) for one in held_out]
        # A device may tell anything; figures of other names are the server's own.
        for name in sorted(MEASURES & {name for figures, _ in told for name in figures}):
            known = [(figures[name], n) for figures, n in told if name in figures]
            metrics.setdefault(f"{name}_{when}", sum(figure * n for figure, n in known) / sum(n for _, n in known))
    for name, figure in (("loss", "loss_last"), (LOSS_BEFORE, "loss_first")):
        losses = [getattr(one, figure) for one in stats if getattr(one, figure) is not None]
        if losses:
            metrics[name] = lower_median(losses)
    return metrics
