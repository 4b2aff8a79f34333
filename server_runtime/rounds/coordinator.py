"""THE LOOP: round by round plan, send, collect, absorb and advance.

A round's plan is committed before anything is sent and every reply before it is acknowledged. Replies are
absorbed when the stage is complete, in the order of device ids, so a run that was killed and resumed ends
with the same bytes as one that was not.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

from fedwright.protocol.errors import RoundError
from fedwright.protocol.messages import Report
from fedwright.server_runtime.methods.base import Assignment, Emission, Method
from fedwright.server_runtime.rounds import events
from fedwright.server_runtime.rounds.absorber import Absorbed, Stage, incoming_of
from fedwright.server_runtime.rounds.believed_samples import passed_on, with_limits
from fedwright.server_runtime.rounds.costs import round_cost
from fedwright.server_runtime.rounds.held_models import held_models, kept_until_now, no_longer_kept
from fedwright.server_runtime.rounds.old_tasks import forget_old_tasks
from fedwright.server_runtime.rounds.pooled_tasks import PoolTerms, merged_tasks, with_pools
from fedwright.server_runtime.rounds.privacy.round_privacy import BudgetSpent
from fedwright.server_runtime.rounds.retry import smaller_tasks
from fedwright.server_runtime.rounds.round_runner import RoundRunner
from fedwright.server_runtime.rounds.secure.adder import SumAdder
from fedwright.server_runtime.rounds.secure.groups import Group, halves, with_group, with_sums
from fedwright.server_runtime.rounds.secure.options import SecureOptions
from fedwright.server_runtime.rounds.spent_blobs import outdated_states, spent_blobs
from fedwright.server_runtime.rounds.spoilt_rounds import (
    ADVICE,
    SPOILT,
    Verdicts,
    has_learnt,
    lately_believed,
    no_quorum,
)
from fedwright.server_runtime.rounds.stage import (
    collect,
    evaluate_fleet,
    fleet_metrics,
    planning_notes,
    restore_planning,
)
from fedwright.server_runtime.rounds.store.base import Closed, Planned, Position
from fedwright.server_runtime.seeds import sample
from fedwright.server_runtime.spec import ModelSpec

# How often devices train in a round whose sums come to nothing.
SUM_ROUNDS = 3


class Coordinator(RoundRunner):
    """Runs a method over a fleet in step: a round ends when all its devices have answered or its deadline is past."""

    def run(self, method: Method, spec: ModelSpec) -> None:
        """All rounds that are still to be done, then one evaluation on every device that is present."""
        self._tracker.admit(spec)
        self._tracker.want(method.wanted_facts())
        self._tracker.offer_less = smaller_tasks(method, self._planner)
        start = self._restore(method)
        number, self._begun = start.round, start.round - 1
        while True:
            self._wait_while_paused()
            if number <= self._options.rounds and self._is_within_budget(method, number, start):
                number += 1
                continue
            options = self._options
            evaluate_fleet(self._tracker, self._store, self._planner, method=method, options=options, left=self._left)
            # The run may have been given more rounds while it was measured.
            if self._options.rounds <= max(number - 1, options.rounds):
                return

    def _is_within_budget(self, method: Method, number: int, start: Position) -> bool:
        """Run a round, unless it would pass the budget of privacy."""
        try:
            self._run_round(method, number, start.stage if number == start.round else 0)
        except BudgetSpent as err:
            self._tracker.observe(events.Warned(str(err)))
            return False
        return True

    def _restore(self, method: Method) -> Position:
        """Put the method where the store says the run stands; return the stage to do next."""
        if not self._resume(method):
            return Position(1, 0)
        last = self._store.closed()[-1].position
        following = Position(last.round, last.stage + 1)
        return following if self._store.plan(following) is not None else Position(last.round + 1, 0)

    def _run_round(self, method: Method, number: int, stage: int) -> None:
        if not self.privacy.begin(number):
            raise BudgetSpent(number)
        began_s, self._begun = self._tracker.clock(), number
        relays: dict[str, Assignment] = {}
        while True:
            position = Position(number, stage)
            plan = self._store.plan(position)
            if plan is None:
                plan = self._pass_on(method, position, relays) if relays else self._begin(method, number)
            else:
                restore_planning(method, self._store.notes(position))
            quorum = self._quorum(position, plan)
            plan = self._ask_again(position, plan, quorum)
            collect(self._tracker, self._store, position=position, plan=plan, options=self._options, quorum=quorum)
            self._add_up(position, quorum)
            # Devices without the memory for their task were given smaller ones, which are in the plan by now.
            plan = sorted(self._store.plan(position) or plan, key=lambda planned: planned.device)
            done = None if self._is_spoilt(position, plan) else self._absorb(method, position, plan)
            if done is None or self._is_spoilt(position, plan):
                self._leave_out(method, position, plan, began_s=began_s)
                return
            relays = {relay.device: relay.assignment for relay in done.relays}
            if not relays:
                break
            following = Position(number, stage + 1)
            if self._store.plan(following) is None:
                self._pass_on(method, following, relays)
            self._close(method, position, plan, done=replace(done, metrics={}))
            stage += 1
        replies = self._store.replies(position)
        metrics = {**fleet_metrics(replies), **round_cost(plan, replies, self._planner.manifest), **done.metrics}
        self._close(method, position, plan, done=replace(done, metrics=metrics))
        self._tracker.observe(events.RoundClosed(number, metrics, self._tracker.clock() - began_s))

    def _begin(self, method: Method, number: int) -> list[Planned]:
        """Plan a round with all devices that the method can plan with."""
        present = self._gather()
        reports = self._capped_reports(self._left.usable(present))
        summed = self._ask_counts(method, reports)
        eligible = [device for device, report in reports.items() if report.trains]
        drawn = self.privacy.draw(eligible) if self.privacy.draws else None

        def plan(some: Mapping[str, Report]) -> tuple[dict[str, Assignment], dict[str, Emission]]:
            if summed is not None:
                method.take_sum(summed)
            method.meet(some)
            training = [device for device, report in some.items() if report.trains]
            count = self._options.per_round or max(1, round(self._options.sample_ratio * len(training)))
            chosen = sample(training, count=count, seed=self._options.seed, round_number=number)
            if drawn is not None:
                chosen = [device for device in training if device in drawn]
            assignments = with_limits(method.assign({device: some[device] for device in chosen}, number), some)
            return assignments, method.emit_all(assignments)

        assignments, emissions = self._left.do(plan, reports, restart=lambda: self._restart(method))
        if not assignments:
            raise RoundError(
                f"the method gave nobody anything to do in round {number}; check its settings and the devices' budgets"
            )
        within = self.privacy.affordable(assignments, present)
        if not within:
            raise BudgetSpent(number)
        self.privacy.spend(number, present, within)
        return self._save_plan(method, Position(number, 0), within, emissions)

    def _pass_on(self, method: Method, position: Position, relays: Mapping[str, Assignment]) -> list[Planned]:
        """Plan a further stage of a round."""
        assignments = passed_on(relays, self._store.plan(Position(position.round, 0)) or [])
        emissions = method.emit_all(assignments)
        return self._save_plan(method, position, assignments, emissions)

    def _save_plan(
        self,
        method: Method,
        position: Position,
        assignments: Mapping[str, Assignment],
        emissions: Mapping[str, Emission],
    ) -> list[Planned]:
        # What goes to an edge goes to all its devices, whatever each of them holds.
        held = {} if self._planner.patches is None or position.stage else held_models(self._store, position.round)
        held = {device: ref for device, ref in held.items() if self._tracker.edge_of(device) is None}
        plan = self._planner.plan(position, assignments, emissions, held=held)
        terms = PoolTerms(self._reader.norm_limit, self._options.class_means, self._options.norm_factor)
        plan = with_pools(plan, method, self._edge_of, position=position, terms=terms)
        secure = self._options.secure
        if secure is not None:
            plan = with_sums(plan, method, self._tracker, position=position, options=secure)
        self._store.save_plan(position, plan, notes=planning_notes(method))
        return plan

    def _edge_of(self, device: str) -> str | None:
        """The edge that a device is behind, or that it is, when that stands for devices of its own."""
        report = self._tracker.present().get(device)
        return device if report is not None and report.stands_for else self._tracker.edge_of(device)

    def _add_up(self, position: Position, quorum: int) -> None:
        """Put sums where changes stay with their devices; those whose sum came to nothing train once more."""
        secure, options = self._options.secure, self._options
        if secure is None or position.is_evaluation:
            return
        adder = SumAdder(self._tracker, self._planner, self._store, options=secure, deadline_s=options.deadline_s)
        for _ in range(SUM_ROUNDS):
            plan = self._store.plan(position) or []
            wrong = adder.add_up(position, plan)
            again = self._ask_again(position, plan, quorum) if not wrong else self._apart(position, plan, wrong)
            if len(again) == len(plan):
                return
            collect(self._tracker, self._store, position=position, plan=again, options=options, quorum=quorum)
        raise no_quorum(self._store.replies(position), position.round, "no sums over enough devices")

    def _apart(self, position: Position, plan: list[Planned], wrong: list[Group]) -> list[Planned]:
        """The plan, with tasks for the halves of groups whose sum was wrong: one of them has nobody who lies."""
        more = []
        names = [device for group in wrong for device in group.planned]
        count = max(len([one for one in plan if one.device == name]) for name in names)
        if not self.privacy.repeat(position.round, names, count):
            return plan
        for group in wrong:
            for name, half in halves(group, self._options.secure or SecureOptions()):
                fresh = [self._planner.afresh(planned, planned) for planned in half]
                more += [replace(one, task=with_group(one.task, name)) for one in fresh]
        self._store.extend_plan(position, more)
        return [*plan, *more]

    def _quorum(self, position: Position, plan: list[Planned]) -> int:
        """How many updates a stage needs; what is passed on in a round that has its quorum may get lost."""
        devices = len({planned.device for planned in plan})
        return 0 if position.stage else math.ceil(self._options.quorum_ratio * devices)

    def _ask_again(self, position: Position, plan: list[Planned], quorum: int) -> list[Planned]:
        """The plan, with fresh tasks for those who failed where the quorum is out of reach without them.

        So it is when a run is resumed that ended for lack of updates: its refusals and rejections are final.
        """
        replies = self._store.replies(position)
        tasks: dict[str, list[Planned]] = {}
        for planned in plan:
            tasks.setdefault(planned.device, []).append(planned)
        # A rejected update is an answer, but for a run that ended because there were no others from its start.
        answers = {"update", "rejected"} if has_learnt(self._store.closed()) else {"update"}
        if Verdicts.of(plan, replies).believed:
            answers.add("rejected")
        lost = {task for task, reply in replies.items() if reply.outcome not in answers}
        failed = [own for own in tasks.values() if all(planned.task.task in lost for planned in own)]
        if len(tasks) - len(failed) >= quorum:
            return plan
        names = [own[0].device for own in failed]
        # Whose answer was lost may have told it all the same, and tells it anew.
        if not self.privacy.repeat(position.round, names, max(map(len, failed), default=0)):
            return plan
        more = [self._planner.afresh(own[0], own[-1]) for own in failed]
        self._store.extend_plan(position, more)
        return [*plan, *more]

    def _is_spoilt(self, position: Position, plan: list[Planned]) -> bool:
        """Whether most updates of a round cannot be believed; what is passed on inside of it may get lost."""
        verdicts = Verdicts.of(plan, self._store.replies(position))
        if position.stage or not verdicts.rejected:
            return False
        return verdicts.is_spoilt(lately_believed(self._store, position.round, verdicts.believed | verdicts.rejected))

    def _leave_out(self, method: Method, position: Position, plan: list[Planned], *, began_s: float) -> None:
        """Close a spoilt round; NoQuorum where nothing of any device could be believed since the run began."""
        replies = self._store.replies(position)
        verdicts = Verdicts.of(plan, replies)
        self._rejected |= verdicts.rejected
        trainers = {device for device, report in self._tracker.present().items() if report.trains}
        if not has_learnt(self._store.closed()) and not verdicts.believed and trainers <= self._rejected:
            raise no_quorum(replies, position.round, "no update that can be believed from any device")
        fate = self._keep_or_go_back(method)
        self._tracker.observe(events.Warned(f"most updates of a round cannot be believed, so {fate}; {ADVICE}"))
        metrics = {**fleet_metrics(replies), "updates": 0.0, SPOILT: 1.0}
        self._reader.forget(planned.task.task for planned in plan)
        self._close(method, position, plan, done=Absorbed([], metrics))
        self._tracker.observe(events.RoundClosed(position.round, metrics, self._tracker.clock() - began_s))

    def _absorb(self, method: Method, position: Position, plan: list[Planned]) -> Absorbed:
        """Fold in the stage's updates in the order of device ids, and close the round unless something is passed on."""
        replies = self._store.replies(position)
        elsewhere, by_task = merged_tasks(replies), {planned.task.task: planned for planned in plan}
        incoming = []
        for planned in plan:
            update = replies[planned.task.task].update
            if update is not None and planned.task.task not in elsewhere:
                incoming.append(incoming_of(planned, update, by_task))
        present = self._capped_reports(self._tracker.present())

        def restart() -> None:
            self._restart(method)
            restore_planning(method, self._store.notes(position))

        def meet_again() -> None:
            restart()
            method.meet(self._left.usable(present))

        # A resumed round was planned by another process, which alone had met its devices.
        self._left.do(method.meet, present, restart=restart)
        stage = Stage(position.round, meet_again, method.advance, looks_back=position.stage > 0)
        return self._absorber.absorb(method, incoming, stage)

    def _close(self, method: Method, position: Position, plan: list[Planned], *, done: Absorbed) -> None:
        blobs = self._planner.blobs
        replies = self._store.replies(position)
        state = blobs.put_bytes(method.state().to_bytes())
        self.privacy.close(position.round)
        self._store.close_stage(Closed(position, state, done.metrics, absorbed=tuple(replies)))
        following = self._store.plan(Position(position.round, position.stage + 1)) or []
        needed = {ref for planned in following for ref in spent_blobs(planned, None)}
        closed = self._store.closed()
        spent = done.tensors | {ref for planned in plan for ref in spent_blobs(planned, replies[planned.task.task])}
        spent -= {one.state for one in closed}
        spent |= outdated_states(closed, self._options.keep_states)
        if self._planner.patches is not None:
            spent |= no_longer_kept(self._store, position.round)
            needed |= kept_until_now(self._store, position.round)
        for sha256 in spent - needed:
            blobs.remove(sha256)
        forget_old_tasks(self._store, position.round, self._planner.manifest)
