"""Asynchronous rounds for fleets whose devices come and go: the model advances after every `buffer` updates.

After FedBuff (Nguyen et al., 2022). A device that is idle gets a task from the newest model; nobody waits for the
slowest. An update made from a model that is `s` versions old counts 1 / sqrt(1 + s) of a fresh one, and a task more
than MAX_STALENESS versions old is called in.
"""

from dataclasses import replace

from msgspec import structs

from fedwright.protocol.errors import NoQuorum
from fedwright.server_runtime.methods.base import CheckedUpdate, Method, MethodState
from fedwright.server_runtime.rounds import events
from fedwright.server_runtime.rounds.costs import round_cost
from fedwright.server_runtime.rounds.old_tasks import forget_old_tasks
from fedwright.server_runtime.rounds.planner import Planner
from fedwright.server_runtime.rounds.retry import smaller_tasks
from fedwright.server_runtime.rounds.secure_sum import introduce
from fedwright.server_runtime.rounds.stage import (
    RoundOptions,
    evaluate_fleet,
    fleet_metrics,
    planning_notes,
    restore_planning,
    spent_blobs,
)
from fedwright.server_runtime.rounds.store.base import Closed, Planned, Position, Reply, RoundStore
from fedwright.server_runtime.rounds.task_tracker import TaskTracker
from fedwright.server_runtime.rounds.update_reader import UpdateReader
from fedwright.server_runtime.seeds import derive_seed
from fedwright.server_runtime.spec import ModelSpec

MAX_STALENESS = 20


class AsynchronousCoordinator:
    """Runs a method over a fleet without waiting: one version of the model per `buffer` updates."""

    def __init__(
        self,
        tracker: TaskTracker,
        planner: Planner,
        *,
        store: RoundStore,
        reader: UpdateReader,
        options: RoundOptions,
    ) -> None:
        self._tracker = tracker
        self._planner = planner
        self._store = store
        self._reader = reader
        self._options = options
        self._buffer: list[tuple[Planned, Reply]] = []
        self._version = 1
        self._stage = 0
        self._began_s = tracker.clock()

    def run(self, method: Method, spec: ModelSpec) -> None:
        """All versions that are still to be made, then one evaluation on every device that is present."""
        self._tracker.admit(spec)
        self._tracker.offer_less = smaller_tasks(method, self._planner)
        self._restore(method)
        self._tracker.gather(self._options.devices, timeout_s=self._options.join_timeout_s)
        heard_s = self._tracker.clock()
        while self._version <= self._options.rounds:
            self._hand_out(method)
            self._tracker.poll(heard_s + self._options.deadline_s)
            updates = [(p, r) for p, r in self._tracker.answered() if r.outcome == "update"]
            self._buffer += updates
            if updates:
                heard_s = self._tracker.clock()
            elif self._tracker.clock() - heard_s >= self._options.deadline_s:
                raise NoQuorum(
                    f"no update came for {self._options.deadline_s:.0f} s while version {self._version} was made; "
                    f"mend the devices, then resume the run"
                )
            while len(self._buffer) >= (self._options.buffer or 1) and self._version <= self._options.rounds:
                self._advance(method)
        self._tracker.call_in([planned.task.task for planned in self._tracker.out()], detail="the run is over")
        self._tracker.answered()
        evaluate_fleet(self._tracker, self._store, self._planner, method=method, options=self._options)

    def _restore(self, method: Method) -> None:
        """Take up the newest state, the updates that are not in it yet, and the tasks that are still out."""
        closed = self._store.closed()
        if closed:
            method.restore(MethodState.read(self._planner.blobs.path(closed[-1].state)))
            self._version = closed[-1].position.round + 1
        for planned, reply in self._store.pending():
            if planned.task.evaluation or planned.task.round > self._options.rounds:
                continue
            if reply is None:
                self._tracker.hand_out([planned])
            else:
                self._buffer.append((planned, reply))
        while self._store.plan(Position(self._version, self._stage)) is not None:
            restore_planning(method, self._store.notes(Position(self._version, self._stage)))
            self._stage += 1

    def _hand_out(self, method: Method) -> None:
        """Give every idle device a task from the newest model; plans are durable before they are sent."""
        busy = {planned.device for planned in self._tracker.out()}
        room = (self._options.per_round or len(self._tracker.present())) - len(busy)
        present = self._tracker.present()
        idle = {device: report for device, report in present.items() if device not in busy and report.trains}
        if room <= 0 or not idle:
            return
        introduce(self._tracker, method, present, deadline_s=self._options.deadline_s)
        chosen = dict(list(idle.items())[:room])
        position = Position(self._version, self._stage)
        assignments = {
            # A fast device may get the same version twice: another draw of its data makes that worth while.
            device: replace(a, recipe=structs.replace(a.recipe, seed=derive_seed(a.recipe.seed, self._stage)))
            for device, a in method.assign(chosen, self._version).items()
        }
        if not assignments:
            return
        emissions = {device: method.emit(device, assignment) for device, assignment in assignments.items()}
        plan = self._planner.plan(position, assignments, emissions)
        self._store.save_plan(position, plan, notes=planning_notes(method))
        self._stage += 1
        self._tracker.observe(events.StagePlanned(self._version, tuple(assignments), evaluation=False))
        self._tracker.hand_out(plan)

    def _advance(self, method: Method) -> None:
        """Fold in the oldest updates of the buffer and make the next version."""
        count = self._options.buffer or 1
        batch, self._buffer = self._buffer[:count], self._buffer[count:]
        for planned, reply in batch:
            if reply.update is not None:
                weight = (1.0 + self._version - planned.task.round) ** -0.5
                values = self._reader.take(planned, reply.update)
                one = CheckedUpdate(values, reply.update.stats, planned.assignment, weight, (reply.task,))
                method.absorb(planned.device, one)
        replies = {reply.task: reply for _, reply in batch}
        cost = round_cost([planned for planned, _ in batch], replies, self._planner.manifest)
        metrics = {**fleet_metrics(replies), **cost, **method.advance()}
        metrics["staleness"] = sum(self._version - planned.task.round for planned, _ in batch) / len(batch)
        self._close(method, batch, metrics)
        self._tracker.observe(events.RoundClosed(self._version, metrics, self._tracker.clock() - self._began_s))
        self._began_s = self._tracker.clock()
        self._version, self._stage = self._version + 1, 0
        stale = [p.task.task for p in self._tracker.out() if self._version - p.task.round > MAX_STALENESS]
        self._tracker.call_in(stale, detail=f"the model is more than {MAX_STALENESS} versions ahead of it")

    def _close(self, method: Method, batch: list[tuple[Planned, Reply]], metrics: dict[str, float]) -> None:
        blobs = self._planner.blobs
        before = self._store.closed()
        state = blobs.put_bytes(method.state().to_bytes())
        absorbed = tuple(reply.task for _, reply in batch)
        self._store.close_stage(Closed(Position(self._version, self._stage), state, metrics, absorbed))
        kept = {ref for planned in self._tracker.out() for ref in spent_blobs(planned, None)} | {state}
        kept |= {ref for planned, reply in self._buffer for ref in spent_blobs(planned, reply)}
        spent = {ref for planned, reply in batch for ref in spent_blobs(planned, reply)}
        spent |= {closed.state for closed in before[-1:]}
        for sha256 in spent - kept:
            blobs.remove(sha256)
        forget_old_tasks(self._store, self._version, self._planner.manifest)
