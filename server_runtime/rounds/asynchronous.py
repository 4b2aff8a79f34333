"""Asynchronous rounds for fleets whose devices come and go: the model advances after every `buffer` updates.

After FedBuff (Nguyen et al., 2022). A device that is idle gets a task from the newest model; nobody waits for the
slowest. An update made from a model that is `s` versions old counts 1 / sqrt(1 + s) of a fresh one, and a task more
than MAX_STALENESS versions old is called in.
"""

from collections.abc import Mapping
from dataclasses import replace

from msgspec import structs

from fedwright.protocol.errors import NoQuorum
from fedwright.protocol.messages import Report
from fedwright.server_runtime.methods.base import Assignment, Emission, Method
from fedwright.server_runtime.rounds import events
from fedwright.server_runtime.rounds.absorber import Incoming, Stage
from fedwright.server_runtime.rounds.believed_samples import capped_reports, with_limits
from fedwright.server_runtime.rounds.costs import round_cost
from fedwright.server_runtime.rounds.old_tasks import forget_old_tasks
from fedwright.server_runtime.rounds.planner import Planner
from fedwright.server_runtime.rounds.retry import smaller_tasks
from fedwright.server_runtime.rounds.round_runner import RoundRunner
from fedwright.server_runtime.rounds.spent_blobs import outdated_states, spent_blobs
from fedwright.server_runtime.rounds.stage import (
    RoundOptions,
    evaluate_fleet,
    fleet_metrics,
    planning_notes,
    restore_planning,
)
from fedwright.server_runtime.rounds.store.base import Closed, Planned, Position, Reply, RoundStore
from fedwright.server_runtime.rounds.task_tracker import TaskTracker
from fedwright.server_runtime.rounds.update_reader import UpdateReader
from fedwright.server_runtime.seeds import derive_seed
from fedwright.server_runtime.spec import ModelSpec

MAX_STALENESS = 20


class AsynchronousCoordinator(RoundRunner):
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
        super().__init__(tracker, planner, store=store, reader=reader, options=options)
        self._buffer: list[tuple[Planned, Reply]] = []
        self._version = 1
        self._stage = 0
        self._began_s = tracker.clock()

    def run(self, method: Method, spec: ModelSpec) -> None:
        """All versions that are still to be made, then one evaluation on every device that is present."""
        self._tracker.admit(spec)
        self._tracker.want(method.wanted_facts())
        self._tracker.offer_less = smaller_tasks(method, self._planner)
        self._restore(method)
        self._gather()
        while True:
            self._make_versions(method)
            self._tracker.call_in([planned.task.task for planned in self._tracker.out()], detail="the run is over")
            self._tracker.new_replies()
            options = self._options
            evaluate_fleet(self._tracker, self._store, self._planner, method=method, options=options, left=self._left)
            # The run may have been given more rounds while it was measured.
            if self._version > self._options.rounds:
                return

    def _make_versions(self, method: Method) -> None:
        """All versions that the run is to have by now."""
        heard_s = self._tracker.clock()
        while self._version <= self._options.rounds:
            self._begun = self._version
            if self._orders.force.paused:
                self._wait_while_paused()
                heard_s = self._tracker.clock()
            self._hand_out(method)
            self._tracker.poll(heard_s + self._options.deadline_s)
            updates = [(p, r) for p, r in self._tracker.new_replies() if r.outcome == "update"]
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

    def _restore(self, method: Method) -> None:
        """Take up the newest state, the updates that are not in it yet, and the tasks that are still out."""
        if self._resume(method):
            self._version = self._store.closed()[-1].position.round + 1
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

    def _restart(self, method: Method) -> None:
        """Undo what the method did since the last version but for its plans."""
        super()._restart(method)
        for stage in range(self._stage):
            restore_planning(method, self._store.notes(Position(self._version, stage)))

    def _hand_out(self, method: Method) -> None:
        """Give every idle device a task from the newest model; plans are durable before they are sent."""
        busy = {planned.device for planned in self._tracker.out()}
        present = self._tracker.present()
        share = max(1, round(self._options.sample_ratio * len(present)))
        room = (self._options.per_round or share) - len(busy)
        idle = {device: report for device, report in present.items() if device not in busy and report.trains}
        if room <= 0 or not idle:
            return
        reports = capped_reports(self._left.usable(present), self._options.weight_cap)
        summed = self._ask_counts(method, reports)

        def plan_with(some: Mapping[str, Report]) -> tuple[dict[str, Assignment], dict[str, Emission]]:
            if summed is not None:
                method.take_sum(summed)
            method.meet(some)
            chosen = {device: some[device] for device in idle if device in some}
            found = with_limits(method.assign(dict(list(chosen.items())[:room]), self._version), some)
            assignments = {
                # A fast device may get the same version twice: another draw of its data makes that worth while.
                device: replace(a, recipe=structs.replace(a.recipe, seed=derive_seed(a.recipe.seed, self._stage)))
                for device, a in found.items()
            }
            return assignments, method.emit_all(assignments)

        assignments, emissions = self._left.do(plan_with, reports, restart=lambda: self._restart(method))
        if not assignments:
            return
        position = Position(self._version, self._stage)
        plan = self._planner.plan(position, assignments, emissions)
        self._store.save_plan(position, plan, notes=planning_notes(method))
        self._stage += 1
        self._tracker.announce(position, tuple(assignments), plan)
        self._tracker.hand_out(plan)

    def _advance(self, method: Method) -> None:
        """Fold in the oldest updates of the buffer and make the next version."""
        count = self._options.buffer or 1
        batch, self._buffer = self._buffer[:count], self._buffer[count:]
        incoming = [
            Incoming(planned, reply.update, (planned,), (1.0 + self._version - planned.task.round) ** -0.5)
            for planned, reply in batch
            if reply.update is not None
        ]
        stage = Stage(self._version, lambda: self._restart(method), method.advance, looks_back=True)
        done = self._absorber.absorb(method, incoming, stage)
        replies = {reply.task: self._store.reply(reply.task) or reply for _, reply in batch}
        cost = round_cost([planned for planned, _ in batch], replies, self._planner.manifest)
        metrics = {**fleet_metrics(replies), **cost, **done.metrics}
        metrics["staleness"] = sum(self._version - planned.task.round for planned, _ in batch) / len(batch)
        self._close(method, batch, metrics)
        self._tracker.observe(events.RoundClosed(self._version, metrics, self._tracker.clock() - self._began_s))
        self._began_s = self._tracker.clock()
        self._version, self._stage = self._version + 1, 0
        stale = [p.task.task for p in self._tracker.out() if self._version - p.task.round > MAX_STALENESS]
        self._tracker.call_in(stale, detail=f"the model is more than {MAX_STALENESS} versions ahead of it")

    def _close(self, method: Method, batch: list[tuple[Planned, Reply]], metrics: dict[str, float]) -> None:
        blobs = self._planner.blobs
        state = blobs.put_bytes(method.state().to_bytes())
        absorbed = tuple(reply.task for _, reply in batch)
        self._store.close_stage(Closed(Position(self._version, self._stage), state, metrics, absorbed))
        kept = {ref for planned in self._tracker.out() for ref in spent_blobs(planned, None)}
        kept |= {ref for planned, reply in self._buffer for ref in spent_blobs(planned, reply)}
        spent = {ref for planned, reply in batch for ref in spent_blobs(planned, reply)}
        closed = self._store.closed()
        spent -= {one.state for one in closed}
        spent |= outdated_states(closed, self._options.keep_states)
        for sha256 in spent - kept:
            blobs.remove(sha256)
        forget_old_tasks(self._store, self._version, self._planner.manifest)
