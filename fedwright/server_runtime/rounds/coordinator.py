"""The loop: gather the fleet, then round by round plan, send, collect, absorb and advance.

A round's plan is committed before anything is sent and every reply before it is acknowledged. Replies are
absorbed when the stage is complete, in the order of device ids, so a run that was killed and resumed ends
with the same bytes as one that was not.
"""

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fedwright.protocol import tensors
from fedwright.protocol.blobs import BlobStore
from fedwright.protocol.errors import BadBlob, BadUpdate, NoQuorum, RoundError
from fedwright.protocol.messages import Dismiss, Gone, Recipe, Refusal, Report, Returns, Update
from fedwright.server_runtime.artifacts.structure import ModelSpec, Structure
from fedwright.server_runtime.intake.admission import check_stats, clip_norm, read_update, report_problem
from fedwright.server_runtime.intake.registry import Registry
from fedwright.server_runtime.methods.base import Absorbed, Assignment, Emission, Method, Relay, Tensors
from fedwright.server_runtime.rounds import events
from fedwright.server_runtime.rounds.exchange import Exchange, Heard, Pulled
from fedwright.server_runtime.rounds.planner import Planner
from fedwright.server_runtime.rounds.sampling import sample
from fedwright.server_runtime.rounds.store import Closed, Planned, Position, Reply, RoundStore

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Options:
    """How rounds are run.

    devices: how many must be present before a round is planned. per_round, or else sample_ratio of those
    present: how many take part. quorum_ratio: share of a stage's tasks that must end in an update.
    clip_norm: the largest norm that one device's change may have (None = any).
    """

    rounds: int
    devices: int
    seed: int
    per_round: int | None = None
    sample_ratio: float = 1.0
    quorum_ratio: float = 0.5
    clip_norm: float | None = None
    deadline_s: float = 600.0
    join_timeout_s: float = 600.0


@dataclass
class _Stage:
    """The stage that is being collected."""

    position: Position
    open: dict[str, Planned]
    began_s: float
    arriving: dict[str, list[tuple[str, Update]]] = field(default_factory=dict)


class Coordinator:
    """Runs a method over a fleet. `gather` first, then `run`, then `dismiss_all`."""

    def __init__(
        self,
        exchange: Exchange,
        planner: Planner,
        *,
        store: RoundStore,
        options: Options,
        observer: events.Observer = events.ignore,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._exchange = exchange
        self._planner = planner
        self._blobs: BlobStore = planner.blobs
        self._store = store
        self._options = options
        self._observe = observer
        self._clock = clock
        self._registry = Registry()
        self._spec: ModelSpec | None = None
        self._stage: _Stage | None = None

    def gather(self) -> dict[str, Report]:
        """Wait until enough devices are present; NoQuorum when they do not come in time."""
        needed = self._options.devices
        deadline = self._clock() + self._options.join_timeout_s
        while len(self._registry.present()) < needed:
            if self._clock() >= deadline:
                raise NoQuorum(
                    f"only {len(self._registry.present())} of {needed} devices are present after "
                    f"{self._options.join_timeout_s:.0f} s; start more devices or lower fleet.devices"
                )
            self._poll(deadline)
        return self._registry.present()

    def run(self, method: Method, spec: ModelSpec) -> None:
        """All rounds that are still to be done, then one evaluation on every device that is present."""
        self._spec = spec
        for device, report in self._registry.present().items():
            self._turn_away_misfit(device, report)
        start = self._restore(method)
        for number in range(start.round, self._options.rounds + 1):
            self._run_round(method, number, start.stage if number == start.round else 0)
        self._evaluate(method)

    def dismiss_all(self, reason: str) -> None:
        """Tell every present device that the run is over."""
        for device in self._registry.present():
            self._exchange.dismiss(device, Dismiss(None, "run_over", reason))

    def _restore(self, method: Method) -> Position:
        """Put the method where the store says the run stands; return the stage to do next."""
        closed = self._store.closed()
        if not closed:
            return Position(1, 0)
        method.restore(tensors.load(self._blobs.path(closed[-1].state)))
        last = closed[-1].position
        following = Position(last.round, last.stage + 1)
        return following if self._store.plan(following) is not None else Position(last.round + 1, 0)

    def _run_round(self, method: Method, number: int, stage: int) -> None:
        began_s = self._clock()
        relays: dict[str, Assignment] = {}
        while True:
            position = Position(number, stage)
            plan = self._store.plan(position)
            if plan is None:
                plan = self._plan(method, position, relays or self._assign(method, number))
            self._collect(position, plan)
            relays = self._absorb(method, position, plan)
            if not relays:
                break
            following = Position(number, stage + 1)
            if self._store.plan(following) is None:
                self._plan(method, following, relays)
            self._close(method, position, plan, {})
            stage += 1
        metrics = {**self._fleet_metrics(position), **method.advance()}
        self._close(method, position, plan, metrics)
        self._observe(events.RoundClosed(number, metrics, self._clock() - began_s))

    def _assign(self, method: Method, number: int) -> dict[str, Assignment]:
        reports = self.gather()
        count = self._options.per_round or max(1, round(self._options.sample_ratio * len(reports)))
        chosen = sample(list(reports), count=count, seed=self._options.seed, round_number=number)
        assignments = method.assign({device: reports[device] for device in chosen}, number)
        if not assignments:
            raise RoundError(f"the method gave nobody anything to do in round {number}; check its settings")
        return assignments

    def _plan(self, method: Method, position: Position, assignments: Mapping[str, Assignment]) -> list[Planned]:
        emissions = {device: method.emit(device, assignment) for device, assignment in sorted(assignments.items())}
        plan = self._planner.plan(position, assignments, emissions)
        self._store.save_plan(position, plan)
        return plan

    def _absorb(self, method: Method, position: Position, plan: list[Planned]) -> dict[str, Assignment]:
        """Fold in the stage's updates in the order of device ids; return what relays ask for."""
        replies = self._store.replies(position)
        relays: list[Relay] = []
        for planned in plan:
            update = replies[planned.task.task].update
            if update is None:
                continue
            values = self._read(planned, update)
            relay = method.absorb(planned.device, Absorbed(values, update.stats, planned.assignment))
            if relay is not None:
                relays.append(relay)
        return {relay.device: relay.assignment for relay in relays}

    def _close(self, method: Method, position: Position, plan: list[Planned], metrics: dict[str, float]) -> None:
        before = self._store.closed()
        state = self._blobs.put_bytes(tensors.save(method.state()))
        replies = self._store.replies(position)
        self._store.close_stage(Closed(position, state, metrics))
        spent = {planned.task.weights.sha256 for planned in plan}
        spent |= {planned.task.sides.sha256 for planned in plan if planned.task.sides is not None}
        spent |= {r.update.tensors.sha256 for r in replies.values() if r.update is not None and r.update.tensors}
        spent |= {closed.state for closed in before[-1:]}
        following = self._store.plan(Position(position.round, position.stage + 1)) or []
        needed = {state} | {planned.task.weights.sha256 for planned in following}
        for sha256 in spent - needed:
            self._blobs.remove(sha256)

    def _evaluate(self, method: Method) -> None:
        """Every present device measures the model it would use now on its own held-out data."""
        position = Position(self._options.rounds + 1, 0)
        plan = self._store.plan(position)
        if plan is None:
            assignments, emissions = {}, {}
            for device in self._registry.present():
                spec, weights = method.personal(device)
                recipe = Recipe(batch=64, learning_rate=0.0, seed=0, epochs=0)
                assignments[device] = Assignment(Structure(spec), recipe, Returns(weights="none"))
                emissions[device] = Emission(weights)
            plan = self._planner.plan(position, assignments, emissions)
            self._store.save_plan(position, plan)
        self._collect(position, plan)

    def _collect(self, position: Position, plan: list[Planned]) -> None:
        """Send what is open and take replies until all are in or the deadline has passed."""
        replies = self._store.replies(position)
        stage = _Stage(position, {p.task.task: p for p in plan if p.task.task not in replies}, began_s=self._clock())
        evaluation = position.round > self._options.rounds
        self._stage = stage
        self._observe(events.StagePlanned(position.round, tuple(p.device for p in plan), evaluation))
        for planned in stage.open.values():
            self._send(planned)
        deadline = stage.began_s + self._options.deadline_s
        while stage.open and self._clock() < deadline:
            self._poll(deadline)
        self._exchange.withdraw_all()
        self._stage = None
        if not evaluation:
            self._require_quorum(position, math.ceil(self._options.quorum_ratio * len(plan)))
        for planned in stage.open.values():
            detail = f"no answer within {self._options.deadline_s:.0f} s"
            self._store.save_reply(Reply(planned.task.task, "late", detail=detail))
            self._observe(events.TaskFailed(position.round, planned.device, detail))

    def _require_quorum(self, position: Position, quorum: int) -> None:
        replies = self._store.replies(position).values()
        updates = sum(reply.outcome == "update" for reply in replies)
        if updates < quorum:
            problems = "; ".join(sorted({r.detail for r in replies if r.detail})) or "no answer before the deadline"
            raise NoQuorum(
                f"round {position.round} got {updates} of the {quorum} updates it needs ({problems}); "
                f"mend the devices, then resume the run"
            )

    def _poll(self, deadline_s: float) -> None:
        for event in self._exchange.poll(max(0.0, min(0.5, deadline_s - self._clock()))):
            if isinstance(event, Pulled):
                self._take_pulled(event)
            elif isinstance(event.message, Report):
                self._take_report(event.device, event.boot, event.message)
            elif isinstance(event.message, Gone):
                self._take_gone(event)
            else:
                self._take_reply(event.device, event.message)
        for device in self._registry.settle(now_s=self._clock()):
            self._welcome(device)

    def _take_report(self, device: str, boot: str, report: Report) -> None:
        newcomer = self._registry.newcomer_boot(device)
        verdict = self._registry.hear(device, boot, report, now_s=self._clock())
        if verdict == "joined":
            self._welcome(device)
        elif verdict == "contested":
            self._exchange.challenge(device)
        elif verdict == "taken":
            reason = f"another live device already uses the id {device}; give this one another --device"
            self._exchange.dismiss(device, Dismiss(newcomer, "identity_taken", reason))
            self._observe(events.DeviceTurnedAway(device, reason))

    def _welcome(self, device: str) -> None:
        member = self._registry.known(device)
        if member is None or self._turn_away_misfit(device, member.report):
            return
        self._observe(events.DeviceJoined(device, member.report))
        if self._stage is not None:
            for planned in self._stage.open.values():
                if planned.device == device:
                    self._send(planned)

    def _turn_away_misfit(self, device: str, report: Report) -> bool:
        problem = None if self._spec is None else report_problem(report, self._spec)
        if problem is None:
            return False
        self._exchange.dismiss(device, Dismiss(self._registry.boot(device), "misfit", problem))
        self._registry.remove(device)
        self._observe(events.DeviceTurnedAway(device, problem))
        return True

    def _take_gone(self, event: Heard) -> None:
        if self._registry.lose(event.device, event.boot):
            self._observe(events.DeviceLost(event.device))

    def _take_reply(self, device: str, reply: Update | Refusal) -> None:
        stage = self._stage
        planned = None if stage is None else stage.open.get(reply.task)
        if stage is None or planned is None or planned.device != device:
            self._take_unexpected(device, reply.task)
            return
        if isinstance(reply, Refusal):
            self._finish(stage, planned, Reply(reply.task, "refused", detail=f"{device} refused: {reply.detail}"))
        elif reply.tensors is None or self._blobs.has(reply.tensors.sha256):
            self._take_update(stage, planned, reply)
        else:
            waiting = stage.arriving.setdefault(reply.tensors.sha256, [])
            if all(task != reply.task for task, _ in waiting):
                waiting.append((reply.task, reply))
            self._exchange.pull(device, reply.tensors)

    def _take_unexpected(self, device: str, task: str) -> None:
        """A reply that no stage waits for: either we have it already and our acknowledgement was lost, or it is late.

        A reply to a task that is still open comes before a resumed server has got to its stage: silence makes
        the device keep it until it is asked again.
        """
        if not self._store.is_open(task):
            self._exchange.acknowledge(device, task, problem="this task is closed; the update was not used again")

    def _take_pulled(self, event: Pulled) -> None:
        if self._stage is None:
            return
        for task, update in self._stage.arriving.pop(event.sha256, []):
            planned = self._stage.open.get(task)
            if planned is None:
                continue
            if not event.problem:
                self._take_update(self._stage, planned, update)
            elif planned.device == event.device:
                self._finish(self._stage, planned, Reply(task, "rejected", detail=f"{event.device}: {event.problem}"))
            else:
                self._take_reply(planned.device, update)

    def _take_update(self, stage: _Stage, planned: Planned, update: Update) -> None:
        """Check an update whose tensors are here, make it durable, then acknowledge it."""
        try:
            check_stats(update.stats)
            self._read(planned, update)
        except (BadUpdate, BadBlob) as err:
            log.warning("device %s round %d: update rejected: %s", planned.device, stage.position.round, err)
            self._finish(stage, planned, Reply(update.task, "rejected", detail=f"{planned.device}: {err}"))
            return
        self._finish(stage, planned, Reply(update.task, "update", update=update))

    def _read(self, planned: Planned, update: Update) -> Tensors:
        """An update's tensors, checked; a change is held to the norm limit."""
        returns = planned.assignment.returns
        if update.tensors is None:
            if returns.weights != "none" or returns.prototypes:
                raise BadUpdate("it holds no tensors although some were asked for")
            return {}
        manifest = self._planner.manifest(planned.assignment.structure)
        values = read_update(self._blobs.path(update.tensors.sha256), manifest, returns)
        return clip_norm(values, self._options.clip_norm) if returns.weights == "delta" else values

    def _finish(self, stage: _Stage, planned: Planned, reply: Reply) -> None:
        self._store.save_reply(reply)
        del stage.open[reply.task]
        self._exchange.acknowledge(planned.device, reply.task, problem=reply.detail)
        if reply.update is not None:
            seconds = self._clock() - stage.began_s
            taken = events.UpdateTaken(stage.position.round, planned.device, reply.update.stats, seconds)
            self._observe(taken)
        else:
            self._observe(events.TaskFailed(stage.position.round, planned.device, reply.detail))

    def _send(self, planned: Planned) -> None:
        boot = self._registry.boot(planned.device)
        if boot is not None:
            self._exchange.assign(planned.device, boot, planned.task)

    def _fleet_metrics(self, position: Position) -> dict[str, float]:
        """Accuracy of the model that was sent out and of what the devices made of it, over all held-out samples."""
        stats = [r.update.stats for r in self._store.replies(position).values() if r.update is not None]
        metrics = {"updates": float(len(stats))}
        holdout = sum(s.holdout for s in stats)
        for name in ("correct_before", "correct_after"):
            counts = [getattr(s, name) for s in stats if getattr(s, name) is not None]
            if counts and holdout:
                metrics[name.replace("correct", "accuracy")] = sum(counts) / holdout
        losses = [s.loss_last for s in stats if s.loss_last is not None]
        if losses:
            metrics["loss"] = sum(losses) / len(losses)
        return metrics
