"""What rounds in step and asynchronous ones are made of, and how either takes back what a method did."""

import math
from collections.abc import Mapping
from dataclasses import replace

from fedwright.protocol.messages import Report
from fedwright.server_runtime.methods.base import Method, MethodState, SumResult
from fedwright.server_runtime.rounds import events
from fedwright.server_runtime.rounds.absorber import Absorber
from fedwright.server_runtime.rounds.believed_samples import capped_reports
from fedwright.server_runtime.rounds.leave_out import LeftOutDevices
from fedwright.server_runtime.rounds.orders import InForce, Order, OrderBook
from fedwright.server_runtime.rounds.planner import Planner
from fedwright.server_runtime.rounds.privacy.round_privacy import NO_PRIVACY, NoPrivacy
from fedwright.server_runtime.rounds.secure.counts import CountAdder
from fedwright.server_runtime.rounds.spoilt_rounds import best_round, best_state, in_a_row
from fedwright.server_runtime.rounds.stage import RoundOptions, restore_newest
from fedwright.server_runtime.rounds.store.base import RoundStore
from fedwright.server_runtime.rounds.task_tracker import TICK_S, TaskTracker
from fedwright.server_runtime.rounds.update_reader import UpdateReader


class RoundRunner:
    """Holds the parts of a run; a coordinator says in which order they work."""

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
        self._left = LeftOutDevices(tracker.observe)
        self._absorber = Absorber(tracker, reader, options.norm_factor, options.combine)
        self.privacy: NoPrivacy = NO_PRIVACY
        self._first = b""
        # Devices of which nothing was believed yet.
        self._rejected: set[str] = set()
        self._orders = OrderBook()
        # The round that was begun last.
        self._begun = 0
        self._capped: tuple[Mapping[str, Report], dict[str, Report]] = ({}, {})

    @property
    def rounds(self) -> int:
        """How many the run has, by now."""
        return self._options.rounds

    def obey(self, orders: OrderBook) -> None:
        """From now on do what people order: what holds already, and what comes."""
        self._orders = orders
        self._tracker.go_without(orders.force.taken_out)
        if orders.force.sample_ratio is not None:
            self._options = replace(self._options, sample_ratio=orders.force.sample_ratio, per_round=None)
        self._tracker.each_tick = self._look_for_orders
        self._look_for_orders()

    def _look_for_orders(self) -> None:
        self._orders.take(self._tracker.observe, self._apply, lambda: self._begun)

    def _apply(self, order: Order, force: InForce) -> None:
        if order.kind in ("rounds", "end") and force.rounds is not None:
            record = self._store.run()
            if record is not None:
                self._store.update_run(replace(record, rounds=force.rounds))
            self._options = replace(self._options, rounds=force.rounds)
        elif order.kind == "sample-ratio" and self.privacy.draws:
            self._tracker.observe(events.Warned("the budget of privacy counts on fleet.sample_ratio, which stays"))
        elif order.kind == "sample-ratio":
            self._options = replace(self._options, sample_ratio=order.sample_ratio, per_round=None)
        elif order.kind == "profile":
            self._tracker.ask_profile(order.device)
        self._tracker.go_without(force.taken_out)

    def _wait_while_paused(self) -> None:
        """Hear devices and orders, and begin nothing, until somebody lets the run go on."""
        self._look_for_orders()
        while self._orders.force.paused:
            self._tracker.poll(self._tracker.clock() + TICK_S)

    def _gather(self) -> dict[str, Report]:
        """Wait for the devices that a round should have; a run that began goes on with a quorum of them."""
        options = self._options
        least = math.ceil(options.quorum_ratio * options.devices)
        began = bool(self._store.closed())
        while True:
            found = self._tracker.gather(options.devices, timeout_s=options.join_timeout_s, least=least, began=began)
            if not self._orders.force.paused:
                return found
            self._wait_while_paused()

    def _capped_reports(self, reports: Mapping[str, Report]) -> dict[str, Report]:
        """Reports in which nobody has many times the samples of others; made once for the same ones."""
        if self._capped[0] is not reports:
            self._capped = (reports, capped_reports(reports, self._options.weight_cap))
        return self._capped[1]

    def _ask_counts(self, method: Method, reports: Mapping[str, Report]) -> SumResult | None:
        """What the devices that are here only tell in a sum; None when the method wants none."""
        wanted, options = method.wanted_sum(reports), self._options
        blobs, deadline_s = self._planner.blobs, options.deadline_s
        adder = CountAdder(self._tracker, blobs, self._store, options=options.counts, deadline_s=deadline_s)
        if wanted is None or wanted.pooled:
            adder.forget()
        return None if wanted is None else adder.add_up(wanted)

    def _resume(self, method: Method) -> bool:
        """Continue from the last closed stage; False when there is none, and then this is where `_restart` goes."""
        self._first = method.state().to_bytes()
        return restore_newest(method, self._store, self._planner)

    def _restart(self, method: Method) -> None:
        """Undo what the method did since a stage was closed."""
        if not restore_newest(method, self._store, self._planner):
            method.restore(MethodState.read(self._first))

    def _keep_or_go_back(self, method: Method) -> str:
        """Put a method where a spoilt round leaves it; returns that in words."""
        self._restart(method)
        closed = self._store.closed()
        best, state = best_round(closed), best_state(closed)
        if not in_a_row(closed) or best is None or (state is not None and not self._planner.blobs.has(state)):
            return "the model stays as it was"
        method.restore(MethodState.read(self._first if state is None else self._planner.blobs.path(state)))
        return f"the run goes back to the model {f'of round {best}' if state else 'that it began with'}"
