"""Who is here, which tasks are out, and every reply made durable before it is acknowledged."""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence

from msgspec import structs

from fedwright.protocol.errors import BadBlob, BadUpdate
from fedwright.protocol.messages import Dismiss, Gone, Refusal, Report, Status, SumAnswer, Update, Why
from fedwright.server_runtime.fleet.admission import check_stats, report_problem
from fedwright.server_runtime.fleet.attendance import Attendance
from fedwright.server_runtime.fleet.class_names import RunData
from fedwright.server_runtime.fleet.registry import Registry, withholds
from fedwright.server_runtime.fleet.speeds import Speeds
from fedwright.server_runtime.fleet.upload_limits import size_problem
from fedwright.server_runtime.rounds import events
from fedwright.server_runtime.rounds.arriving_updates import ArrivingUpdates
from fedwright.server_runtime.rounds.believed_samples import IdleDevices, believed, believed_pool
from fedwright.server_runtime.rounds.channel import Channel
from fedwright.server_runtime.rounds.costs import offers_of
from fedwright.server_runtime.rounds.gathering import wait_for_devices
from fedwright.server_runtime.rounds.known_codecs import KnownCodecs
from fedwright.server_runtime.rounds.planner import Planner
from fedwright.server_runtime.rounds.pooled_tasks import is_pool
from fedwright.server_runtime.rounds.questions import Questions
from fedwright.server_runtime.rounds.store.base import Planned, Position, Reply, RoundStore
from fedwright.server_runtime.rounds.task_out import TaskOut
from fedwright.server_runtime.rounds.update_reader import UpdateReader
from fedwright.server_runtime.spec import ModelSpec
from fedwright.server_runtime.transport.device_channel import Heard
from fedwright.server_runtime.transport.upload_puller import Pulled

log = logging.getLogger(__name__)

# The longest wait for a message, so that deadlines and contested ids are looked at in time.
TICK_S = 0.5
TAKEN_OUT = "it was taken out of the run by order"
OfferLess = Callable[[Planned, Refusal], Planned | None]
"""What to send a device that refused a task; None gives up on it for this stage."""


class TaskTracker:
    """What sits between a coordinator and its devices; single-threaded, driven by `poll`."""

    def __init__(
        self,
        channel: Channel,
        planner: Planner,
        *,
        store: RoundStore,
        reader: UpdateReader,
        observer: events.Observer = events.ignore,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.clock = clock
        self._planner = planner
        self._store = store
        self._reader = reader
        self.observe = observer
        self._channel = channel
        self.edge_of = channel.edge_of
        self._registry = Registry()
        planner.known_to = KnownCodecs(self._registry, channel.edge_of, observer)
        planner.takes_parts = self._registry.takes_parts
        self.questions = Questions(channel, self._registry)
        self._attendance = Attendance()
        self._spec: ModelSpec | None = None
        self.run_data = RunData()
        self._wanted: tuple[str, ...] = ()
        self._out: dict[str, TaskOut] = {}
        self._arriving = ArrivingUpdates()
        self._answered: list[tuple[Planned, Reply]] = []
        self._idle = IdleDevices()
        self._taken_out: set[str] = set()
        self.each_tick: Callable[[], None] = lambda: None
        self.speeds = Speeds()
        self.offer_less: OfferLess = lambda planned, refusal: None
        # Raises when the run is no longer this server's.
        self.check_claim: Callable[[], None] = lambda: None

    def present(self) -> dict[str, Report]:
        """Reports of the devices that are here now, but for those that have not yet told what the run asks for."""
        return self._registry.told(self._wanted)

    def want(self, facts: Sequence[str]) -> None:
        """From now on devices are asked for these facts of their data; their owners may let them keep some back."""
        self._wanted = tuple(facts)
        for device in [d for d, report in self._registry.present().items() if withholds(report, self._wanted)]:
            self._channel.challenge(device, self._wanted)

    def gather(
        self, wanted: int, *, timeout_s: float, least: int | None = None, began: bool = False
    ) -> dict[str, Report]:
        """Wait until enough devices are present; NoQuorum when they do not come in time.

        least: so few will do once the time is over, where others were turned away, or (began) were in the run before.
        """

        def needed(present: Collection[str]) -> int:
            return max(1, self._attendance.needed(wanted, present) - len(self._taken_out))

        if wait_for_devices(self, needed, timeout_s, lambda: least if began or self._attendance.is_spoilt else None):
            self._attendance.give_up(wanted - len(self._taken_out), self.present())
        return self.present()

    def go_without(self, devices: Collection[str]) -> None:
        """From now on the run goes on without these devices, and without these alone."""
        before, self._taken_out = self._taken_out, set(devices)
        for device in sorted(self._taken_out - before):
            self._channel.recall_all(device)
            self.call_in([task for task, out in self._out.items() if out.planned.device == device], detail=TAKEN_OUT)
            self._dismiss(device, self._registry.boot(device), "run_over", TAKEN_OUT)
            self._registry.remove(device)
        for device in sorted(before - self._taken_out):
            self._channel.challenge(device, self._wanted)

    def ask_profile(self, device: str) -> None:
        """Ask a device to measure itself when it has nothing else to do, and to report what it found."""
        self.speeds.ask(device)
        self._channel.challenge(device, self._wanted, profile=True)

    def admit(self, spec: ModelSpec) -> None:
        """From now on only devices whose data fits this model may stay."""
        self._spec = spec
        for device, report in self.present().items():
            self._turn_away_misfit(device, report)

    def announce(self, position: Position, devices: tuple[str, ...], sent: list[Planned]) -> None:
        """Tell the observer what goes out now."""
        offers = offers_of(sent, self._planner.manifest, self.speeds)
        known = tuple((planned.device, planned.task.task, planned.task.weights.sha256) for planned in sent)
        self.observe(events.StagePlanned(position.round, devices, position.is_evaluation, known, offers))

    def hand_out(self, plan: Iterable[Planned]) -> None:
        """Send tasks; they stay out until they are answered or called in."""
        for planned in plan:
            # A task that another process planned: from now on its artifact is known here too.
            self._planner.manifest(planned.assignment.structure)
            self._out[planned.task.task] = TaskOut(planned, self.clock())
            self._send(planned)

    def out(self) -> list[Planned]:
        """Tasks that are not answered yet."""
        return [out.planned for out in self._out.values()]

    def call_in(self, tasks: Iterable[str], *, detail: str) -> None:
        """Give up waiting for these tasks; that too is made durable."""
        for task in list(tasks):
            planned = self._out.pop(task).planned
            self._arriving.forget(task)
            self._channel.withdraw(task)
            reply = Reply(task, "late", detail=detail)
            self._store.save_reply(reply)
            self._answered.append((planned, reply))
            self.observe(events.TaskFailed(planned.task.round, planned.device, detail, planned.task.evaluation))

    def reject(self, plan: Iterable[Planned], detail: str) -> None:
        """Take back that updates were taken: durable first, then their devices are told."""
        spoilt = list(plan)
        self._store.reject([planned.task.task for planned in spoilt], detail)
        for planned in spoilt:
            self._channel.acknowledge(planned.device, planned.task.task, problem=detail)
            self.observe(events.TaskFailed(planned.task.round, planned.device, detail, planned.task.evaluation))

    def new_replies(self) -> list[tuple[Planned, Reply]]:
        """Tasks that ended since the last call, in the order in which that became durable."""
        answered, self._answered = self._answered, []
        return answered

    def dismiss_all(self, reason: str) -> None:
        """Tell every present device that the run is over."""
        present = self._registry.present()
        # An edge may leave when it is dismissed, so its devices hear it first.
        for device in sorted(present, key=lambda device: present[device].edge):
            self._dismiss(device, self._registry.boot(device), "run_over", reason)

    def poll(self, deadline_s: float) -> None:
        """Wait for messages, at most until the deadline, and deal with them."""
        self.check_claim()
        for event in self._channel.poll(max(0.0, min(TICK_S, deadline_s - self.clock()))):
            if isinstance(event, Pulled):
                self._take_pulled(event)
            elif isinstance(event.message, Report):
                self._take_report(event.device, event.boot, event.message)
            elif isinstance(event.message, Gone):
                self._take_gone(event)
            elif isinstance(event.message, SumAnswer):
                self.questions.take(event.device, event.message)
            elif isinstance(event.message, Status):
                self._take_status(event.device, event.message)
            else:
                self._take_reply(event.device, event.message)
        for device in self._registry.settle(now_s=self.clock()):
            self._welcome(device)
        self.each_tick()

    def _take_report(self, device: str, boot: str, report: Report) -> None:
        if device in self._taken_out:
            self._dismiss(device, boot, "run_over", TAKEN_OUT)
            return
        measured = self.speeds.hear(device, report)
        newcomer = self._registry.newcomer_boot(device)
        report = self._idle.read(device, self.run_data.read(report), self.observe)
        verdict = self._registry.hear(device, boot, report, now_s=self.clock())
        if self._registry.boot(device) == boot and withholds(report, self._wanted):
            self._channel.challenge(device, self._wanted)
        if verdict == "joined":
            self._welcome(device)
        elif verdict == "known" and self._registry.boot(device) == boot and not report.edge:
            # The same device says something else of itself than when it came.
            if measured:
                self.observe(events.DeviceMeasured(device, report))
            self._turn_away_misfit(device, report)
        elif verdict == "contested":
            self._channel.challenge(device, self._wanted)
        elif verdict == "taken":
            reason = f"another live device already uses the id {device}; give this one another --device"
            self._dismiss(device, newcomer, "identity_taken", reason)
            self.observe(events.DeviceTurnedAway(device, reason, double=True))

    def _welcome(self, device: str) -> None:
        member = self._registry.known(device)
        if member is None or member.report.edge or self._turn_away_misfit(device, member.report):
            return
        self.observe(events.DeviceJoined(device, member.report))
        for out in self._out.values():
            if out.planned.device == device:
                self._send(out.planned)

    def _turn_away_misfit(self, device: str, report: Report) -> bool:
        problem = None if self._spec is None else report_problem(report, self._spec, self.run_data)
        if problem is None:
            self._registry.amend(device, self.run_data.read(report))
            self._attendance.welcome(device)
            return False
        self._dismiss(device, self._registry.boot(device), "misfit", problem)
        self._registry.remove(device)
        self._attendance.turn_away(device)
        self.observe(events.DeviceTurnedAway(device, problem))
        return True

    def _dismiss(self, device: str, boot: str | None, why: Why, reason: str) -> None:
        if boot is not None:
            self._channel.dismiss(device, Dismiss(boot, why, reason))

    def _take_gone(self, event: Heard) -> None:
        if self._registry.lose(event.device, event.boot):
            self.observe(events.DeviceLost(event.device))

    def _take_status(self, device: str, status: Status) -> None:
        out = self._out.get(status.task)
        if out is not None and out.planned.device == device:
            out.begin(self.clock())
            self.observe(events.DeviceStatus(out.planned.task.round, device, status))

    def _take_reply(self, device: str, reply: Update | Refusal) -> None:
        out = self._out.get(reply.task)
        if out is not None:
            out.tell(self.clock())
        if isinstance(reply, Update) and reply.parts:
            self._take_pooled(device, reply)
        elif out is None or out.planned.device != device:
            self._take_unexpected(device, reply.task)
        elif isinstance(reply, Refusal):
            self._take_refusal(out, reply)
        elif not self._fetch(device, out.planned, reply):
            self._take_update(out, reply)

    def _fetch(self, device: str, planned: Planned, update: Update) -> bool:
        """Ask for an update's tensors; False when that is no use: they are here, or more than `read` would take."""
        ref = update.tensors
        if ref is None or self._planner.blobs.has(ref.sha256):
            return False
        if size_problem(ref, self._planner.manifest(planned.assignment.structure), planned.task.returns):
            return False
        self._arriving.add(update, ref.sha256)
        self._channel.pull(device, ref)
        return True

    def _take_pooled(self, edge: str, update: Update) -> None:
        """An edge's mean over several tasks; one of them that is closed cannot be taken out of it here."""
        outs = [self._out.get(part.task) for part in update.parts]
        waited = [out for out in outs if out is not None]
        if len(waited) < len(outs):
            for part, out in zip(update.parts, outs, strict=True):
                if out is None and not self._store.is_open(part.task):
                    self._channel.recall(edge, part.task)
        elif not is_pool(edge, update, [out.planned for out in waited]):
            # Another edge's tasks may be among them, which are not this one's to spoil.
            log.warning("edge %s put updates together that are not one pool of its own; they are not used", edge)
        elif not self._fetch(edge, waited[0].planned, update):
            self._finish_pool(edge, waited, update)

    def _finish_pool(self, edge: str, outs: list[TaskOut], update: Update) -> None:
        """Check a pooled update whose tensors are here, make it durable for all its tasks, then acknowledge them."""
        try:
            for part, out in zip(update.parts, outs, strict=True):
                check_stats(part.stats, out.planned.task.recipe)
            self._reader.check(outs[0].planned, update)
        except (BadUpdate, BadBlob) as err:
            log.warning("edge %s round %d: update rejected: %s", edge, update.round, err)
            self._finish_all(outs, [Reply(part.task, "rejected", detail=f"{edge}: {err}") for part in update.parts])
            return
        update = believed_pool(update, [out.planned for out in outs])
        first, *others = update.parts
        own = [structs.replace(update, stats=first.stats)]
        own += [Update(part.task, update.round, part.stats) for part in others]
        self._finish_all(outs, [Reply(one.task, "update", update=one) for one in own])

    def _finish_all(self, outs: list[TaskOut], replies: list[Reply]) -> None:
        self._store.save_replies(replies)
        for out, reply in zip(outs, replies, strict=True):
            if reply.update is not None:
                self._learn_speed(out.planned, reply.update)
            self._settle(out, reply)

    def _take_refusal(self, out: TaskOut, refusal: Refusal) -> None:
        """Make the refusal durable together with the smaller task that answers it, then send that."""
        device = out.planned.device
        retry = self.offer_less(out.planned, refusal)
        reply = Reply(refusal.task, "refused", detail=f"{device} refused: {refusal.detail}")
        self._finish(out, reply, retry=retry)
        if retry is not None:
            self.observe(events.LessOffered(retry.task.round, device, refusal.detail, retry.task.evaluation))
            self.hand_out([retry])

    def _take_unexpected(self, device: str, task: str) -> None:
        """A reply that nobody waits for: either we have it already and our acknowledgement was lost, or it is late.

        A reply to a task that is still open comes before a resumed server has got to it: silence makes the
        device keep it until it is asked again.
        """
        if not self._store.is_open(task):
            known = self._store.reply(task)
            # The same word as before: a device that took a used update for unused would send a part of it again.
            problem = "this task is closed; its round is over" if known is None else known.detail
            self._channel.acknowledge(device, task, problem=problem)

    def _take_pulled(self, event: Pulled) -> None:
        for update in self._arriving.take(event.sha256):
            out = self._out.get(update.task)
            if out is None:
                continue
            if event.problem and (update.parts or self.edge_of(out.planned.device) is not None):
                # What an edge cannot give now it announces again, or another does.
                log.warning("edge %s: %s", event.device, event.problem)
            elif update.parts and out.planned.task.pool is not None:
                # The same bytes may have come from somebody else first.
                self._take_pooled(out.planned.task.pool.edge, update)
            elif not event.problem:
                self._take_update(out, update)
            elif out.planned.device == event.device:
                self._finish(out, Reply(update.task, "rejected", detail=f"{event.device}: {event.problem}"))
            else:
                self._take_reply(out.planned.device, update)

    def _take_update(self, out: TaskOut, update: Update) -> None:
        """Check an update whose tensors are here, make it durable, then acknowledge it."""
        planned = out.planned
        try:
            check_stats(update.stats, planned.task.recipe)
            self._reader.check(planned, update)
        except (BadUpdate, BadBlob) as err:
            log.warning("device %s %s: update rejected: %s", planned.device, planned.task.title, err)
            self._finish(out, Reply(update.task, "rejected", detail=f"{planned.device}: {err}"))
            return
        update = believed(update, planned)
        self._learn_speed(planned, update)
        self._finish(out, Reply(update.task, "update", update=update))

    def _learn_speed(self, planned: Planned, update: Update) -> None:
        manifest = self._planner.manifest(planned.assignment.structure)
        recipe = planned.assignment.recipe
        self.speeds.take(planned.device, manifest, update.stats, batch=recipe.batch, part=recipe.part)

    def _finish(self, out: TaskOut, reply: Reply, *, retry: Planned | None = None) -> None:
        self._store.save_reply(reply, retry=retry)
        self._settle(out, reply)

    def _settle(self, out: TaskOut, reply: Reply) -> None:
        """Tell the device and the observer how a task ended that is durable by now."""
        planned = self._out.pop(reply.task).planned
        self._arriving.forget(reply.task)
        self._channel.acknowledge(planned.device, reply.task, problem=reply.detail)
        self._channel.withdraw(reply.task)
        self._answered.append((planned, reply))
        number, measures = planned.task.round, planned.task.evaluation
        if reply.update is not None:
            self.observe(out.taken(reply.update, self.clock()))
        else:
            self.observe(events.TaskFailed(number, planned.device, reply.detail, measures, reply.outcome))

    def _send(self, planned: Planned) -> None:
        member = self._registry.known(planned.device)
        if member is not None and member.present:
            shard = planned.device if member.report.stands_for else None
            self._channel.assign(planned.device, member.boot, structs.replace(planned.task, shard=shard))
