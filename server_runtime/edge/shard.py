"""An edge that stands for its devices: the host leads it like one device, whatever number of devices is behind it.

1. Devices report to the edge as to any server. The edge makes one report of all (`shard_report.py`): the sum of their
   data, the least of what they can do. The host's cost therefore grows with edges, not with devices.
2. The host's task is for the shard. The edge makes it durable, acknowledges it, fetches its blobs once and sends the
   signed bytes to all devices in one message; each obeys the host alone, whose signature it checks.
3. Each device's update is fetched, made durable and `held`. When all have answered, or most of the task's time has
   passed, the edge sends up their mean with the weight of all, and then passes the host's signed acknowledgement on.

What a kill does: an edge that comes back goes on from its store. Devices of one that stays away go to the next edge of
their own order (`protocol/rendezvous.py`) and take part in its task; one that had answered already says so and is not
counted twice. What an edge had collected and not sent up when it was lost for good is missing in that round.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from msgspec import structs

from fedwright.protocol.blobs import BlobStore, inlined
from fedwright.protocol.errors import BadBlob, BadUpdate, ConfigError
from fedwright.protocol.messages import (
    Ack,
    Challenge,
    Chunk,
    Dismiss,
    Gone,
    Lost,
    Message,
    Part,
    Refusal,
    Report,
    Task,
    Update,
)
from fedwright.protocol.task_blobs import blobs_of, own_blobs
from fedwright.server_runtime.edge.base import TICK_S, BaseEdge, EdgeOptions
from fedwright.server_runtime.edge.host_channel import HostChannel
from fedwright.server_runtime.edge.metrics import EdgeSnapshot
from fedwright.server_runtime.edge.pooled_update import PooledReply, Reader, put_together
from fedwright.server_runtime.edge.shard_report import MOST_SAMPLES_RATIO, believed_reports, report_of, says_more
from fedwright.server_runtime.edge.shard_store import Answer, ShardStore
from fedwright.server_runtime.edge.task_rows import PATIENCE_RATIO, RESEND_S
from fedwright.server_runtime.fleet.registry import withholds
from fedwright.server_runtime.fleet.upload_limits import most_bytes
from fedwright.server_runtime.rounds.believed_samples import most_samples
from fedwright.server_runtime.rounds.pooled_tasks import total
from fedwright.server_runtime.transport.device_channel import DeviceChannel, Heard
from fedwright.server_runtime.transport.upload_puller import Pulled

log = logging.getLogger(__name__)

# The host hears no oftener that devices came or went.
REPORT_S = 3.0
ONLY_MEANS = (
    "this edge stands for its devices and can only average their changes; use a method that does so in rounds, or "
    "leave edge.stands and edge.shards out"
)


@dataclass
class _Here:
    """A device that is here: the life of it that reported, and what it said."""

    boot: str
    report: Report


class Shard(BaseEdge):
    """One edge that stands for its devices; `run` returns when the host's run is over (with `once`) or on `stop`."""

    def __init__(
        self,
        up: HostChannel,
        down: DeviceChannel,
        *,
        store: ShardStore,
        blobs: BlobStore,
        options: EdgeOptions | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(up, options or EdgeOptions(), clock=clock)
        self._down, self._store, self._blobs = down, store, blobs
        self._reader = Reader(blobs)
        self._here: dict[str, _Here] = {}
        self._tell: tuple[str, ...] = ()
        self._told: Report | None = None
        self._changed, self._told_s = False, clock() - REPORT_S
        self._arriving: dict[str, list[Heard]] = {}
        self._new: dict[str, Answer] = {}
        # Of the task in hand: who is waited for; None until it went out in this life of the edge.
        self._waiting: set[str] | None = None
        self._began_s = self._sent_s = clock()

    def snapshot(self) -> EdgeSnapshot:
        """How the edge does now; safe from any thread."""
        task, answers = self._store.task, len(self._store.answers)
        states = {} if task is None else {"open": len(self._waiting or ()), "answered": answers}
        return EdgeSnapshot(len(self._here), states, self._heard_s)

    def run(self) -> None:
        """Serve; LinkError when no host was ever heard of, IdentityTaken when another edge has this name."""
        self._begin()
        while not self._stopping.is_set() and not self._over:
            for event in self._down.poll(TICK_S):
                if isinstance(event, Pulled):
                    self._take_pulled(event)
                else:
                    self._take_message(event)
            self._hold()
            for message, payload in self._up.poll_signed():
                self._take_order(message, payload)
            self._tend()

    def _tend(self) -> None:
        now_s = self._clock()
        if self._up.came_up():
            self._tell_host()
            self._sent_s = now_s - RESEND_S
        if self._is_beat_due():
            self._down.say_here()
        self._check_host()
        if self._changed and now_s - self._told_s >= REPORT_S:
            report = report_of(self._up.presence.board, self._reports())
            if says_more(self._told, report):
                self._tell_host()
            self._changed = False
        self._up.tend()
        self._close()
        sent = self._store.sent
        if sent is not None and self._acknowledgement() is None and now_s - self._sent_s >= RESEND_S:
            self._send_up(sent)

    def _reports(self) -> dict[str, Report]:
        return {device: here.report for device, here in self._here.items()}

    def _tell_host(self) -> None:
        """Say what the devices are, once enough of them are here."""
        if len(self._here) >= self._options.least or self._told is not None:
            self._told, self._told_s = report_of(self._up.presence.board, self._reports()), self._clock()
            self._up.report(self._told)

    def _take_order(self, message: Message, payload: bytes) -> None:
        """Something from the host."""
        self._host_heard, self._heard_s = True, time.time()
        if isinstance(message, Task):
            self._take_task(message, payload)
        elif isinstance(message, Ack):
            self._take_ack(message, payload)
        elif isinstance(message, Chunk):
            self._begin()
        elif isinstance(message, Challenge):
            self._take_challenge(message)
        elif isinstance(message, Lost):
            log.warning("the host no longer holds blob %s; it has moved on", message.sha256[:12])
        elif isinstance(message, Dismiss):
            self._take_dismiss(message)

    def _take_challenge(self, challenge: Challenge) -> None:
        if challenge.tell:
            self._tell = tuple(challenge.tell)
            for device, here in self._here.items():
                self._ask_for_facts(device, here.report)
        self._tell_host()

    def _ask_for_facts(self, device: str, report: Report) -> None:
        if withholds(report, self._tell):
            self._down.challenge(device, self._tell)

    def _take_dismiss(self, dismiss: Dismiss) -> None:
        if dismiss.boot == self._up.presence.boot and dismiss.why == "misfit":
            raise ConfigError(f"the host turned edge {self._name} away: {dismiss.reason}")
        super()._take_dismiss(dismiss)

    def _take_task(self, task: Task, payload: bytes) -> None:
        """Make a task for all devices durable, acknowledge it and pass it on; one that is known may be answered."""
        if task.boot != self._up.presence.boot or task.shard != self._name:
            return
        known = self._store.task
        if known is None or known.task != task.task:
            self._give_up(known)
            self._store.save_task(task, payload)
        self._up.send(Ack(task.task))
        self._sent_s = self._clock() - RESEND_S
        self._begin()

    def _give_up(self, task: Task | None) -> None:
        """The host has gone on: nothing of a task is needed any longer."""
        self._waiting = None
        self._new.clear()
        self._arriving.clear()
        if task is None:
            return
        self._down.withdraw(task.task)
        answers = [*self._store.answers.values(), self._store.sent]
        refs = [*own_blobs(task), *(answer.tensors for answer in answers if isinstance(answer, Update))]
        for sha256 in {ref.sha256 for ref in refs if ref is not None}:
            self._down.stop_serving(sha256)
            self._up.stop_serving(sha256)
            self._blobs.remove(sha256)

    def _begin(self) -> None:
        """Send the task in hand to all devices, once its blobs are here."""
        task = self._store.task
        if task is None or self._waiting is not None or self._store.sent is not None:
            return
        problem = self._problem(task)
        if problem:
            self._send_answer(Refusal(task.task, "failed", problem))
        elif self._up.fetch(blobs_of(task)):
            devices = [device for device in self._here if device not in self._store.answers]
            self._waiting, self._began_s = set(devices), self._clock()
            self._down.pass_on_to_all(devices, task, self._store.payload)

    def _problem(self, task: Task) -> str:
        """Why an edge cannot do a task for all its devices; "" when it can."""
        returns = task.returns
        if task.sum is not None or returns.logits or returns.weights == "weights":
            return ONLY_MEANS
        return ONLY_MEANS if returns.weights == "delta" and task.pool is None else ""

    def _take_message(self, event: Heard) -> None:
        """Something from a device."""
        device, message = event.device, event.message
        if isinstance(message, Report):
            self._take_report(device, event.boot, message)
        elif isinstance(message, Gone):
            here = self._here.get(device)
            if here is not None and here.boot == event.boot:
                del self._here[device]
                self._changed = True
                (self._waiting or set()).discard(device)
        elif isinstance(message, Update) and message.tensors is not None and self._is_wanted(device, message):
            self._arriving.setdefault(message.tensors.sha256, []).append(event)
            self._down.pull(device, message.tensors)
        elif isinstance(message, Update | Refusal):
            self._take_answer(device, message)

    def _take_report(self, device: str, boot: str, report: Report) -> None:
        self._here[device] = _Here(boot, report)
        self._changed = True
        self._ask_for_facts(device, report)
        task = self._store.task
        if task is None or self._waiting is None or self._store.sent is not None or device in self._answers():
            return
        # It is waited for as soon as it has acknowledged the task: a device need not obey what came before it.
        self._down.pass_on(device, task, self._store.payload)

    def _answers(self) -> dict[str, Answer]:
        return self._store.answers | self._new if self._new else self._store.answers

    def _is_wanted(self, device: str, update: Update) -> bool:
        """Whether to fetch an update's tensors: of this task, not there yet, and no larger than they can be."""
        task, ref = self._store.task, update.tensors
        if task is None or ref is None or update.task != task.task or self._store.sent is not None:
            return False
        if device in self._store.answers or device in self._new or self._blobs.has(ref.sha256):
            return False
        return ref.size_bytes <= most_bytes(self._reader.manifest(task), task.returns)

    def _take_pulled(self, event: Pulled) -> None:
        for heard in self._arriving.pop(event.sha256, []):
            if event.problem:
                log.warning("device %s: %s", heard.device, event.problem)
            elif isinstance(heard.message, Update):
                self._take_answer(heard.device, heard.message)

    def _take_answer(self, device: str, answer: Answer) -> None:
        """Note an answer; it is made durable together with others."""
        task, known = self._store.task, self._store.acknowledgement(answer.task)
        if known is not None:
            self._down.send_bytes(device, known)
        elif task is None or answer.task != task.task:
            # The host alone can say that a task is over.
            self._up.send(Refusal(answer.task, "failed", "a device of this edge was late"))
        elif self._store.sent is None and (isinstance(answer, Refusal) or self._is_here(answer)):
            self._new[device] = answer

    def _is_here(self, update: Update) -> bool:
        return update.tensors is None or self._blobs.has(update.tensors.sha256)

    def _hold(self) -> None:
        """Make new answers durable, then tell their devices."""
        task, new = self._store.task, dict(self._new)
        if task is None or not new:
            return
        self._new.clear()
        # Tensors that came inside an answer are in the store of blobs by now.
        self._store.save_answers({device: _without_tensors(answer) for device, answer in new.items()})
        for device in new:
            (self._waiting or set()).discard(device)
            self._down.say_held(device, task.task)

    def _close(self) -> None:
        """Make one answer of all, when nobody is waited for or most of the time has passed."""
        task, answers = self._store.task, self._store.answers
        if task is None or self._waiting is None or self._store.sent is not None or not answers:
            return
        late = self._clock() - self._began_s >= PATIENCE_RATIO * task.deadline_s
        if not late and (self._waiting or self._has_newcomers(task)):
            return
        updates = {device: answer for device, answer in answers.items() if isinstance(answer, Update)}
        self._send_answer(self._mean(task, updates))

    def _has_newcomers(self, task: Task) -> bool:
        """Whether a device that came later has the task and has not answered."""
        return any(
            device not in self._store.answers and self._down.is_heard(device, task.task) for device in self._here
        )

    def _mean(self, task: Task, updates: dict[str, Update]) -> Answer:
        """The answer for all devices; what cannot be read is left out and named."""
        members = []
        for device, update in sorted(updates.items()):
            try:
                self._reader.read(task, update)
                members.append(PooledReply(device, task, update))
            except (BadUpdate, BadBlob) as err:
                log.warning("device %s round %d: update left out: %s", device, task.round, err)
        if not members:
            refusals = [answer for answer in self._store.answers.values() if isinstance(answer, Refusal)]
            why = refusals[0].detail if refusals else "no update of its devices can be used"
            return Refusal(task.task, refusals[0].reason if refusals else "failed", why)
        members = believed_members(members, self._reports())
        whole = put_together(members, self._reader) if task.returns.weights == "delta" else _measured(members)
        log.info("round %d: %d updates go up as one", task.round, len(members))
        # Steps of many devices beside each other: one of them says how fast a shard is.
        stats = structs.replace(whole.stats, steps=max(member.update.stats.steps for member in members))
        return structs.replace(whole, parts=[], stats=stats, devices=len(members))

    def _send_answer(self, answer: Answer) -> None:
        self._store.save_sent(_without_tensors(answer))
        self._send_up(answer)

    def _send_up(self, answer: Answer) -> None:
        self._sent_s = self._clock()
        if isinstance(answer, Update) and answer.tensors is not None:
            self._up.serve(answer.tensors)
            answer = structs.replace(answer, tensors=inlined(self._blobs, answer.tensors))
        self._up.send(answer)

    def _acknowledgement(self) -> bytes | None:
        return None if self._store.task is None else self._store.acknowledgement(self._store.task.task)

    def _take_ack(self, ack: Ack, payload: bytes) -> None:
        """The host has the answer for all: tell the devices, with its signature."""
        if self._store.acknowledgement(ack.of) is None:
            self._store.save_acknowledgement(ack.of, payload)
        self._down.send_to_all(payload)


def believed_members(members: Sequence[PooledReply], reports: Mapping[str, Report]) -> list[PooledReply]:
    """Members with as many samples as they reported, within a few times the middle one; of who left at most that."""
    known = believed_reports(reports)
    limit = most_samples(known, MOST_SAMPLES_RATIO) or 1
    found = []
    for member in members:
        most = max(1, known[member.device].data.samples) if member.device in known else limit
        stats = structs.replace(member.update.stats, samples=min(member.update.stats.samples, most))
        found.append(replace(member, update=structs.replace(member.update, stats=stats)))
    return found


def _without_tensors(answer: Answer) -> Answer:
    """The answer with its tensors named only."""
    if isinstance(answer, Refusal) or answer.tensors is None:
        return answer
    return structs.replace(answer, tensors=structs.replace(answer.tensors, inline=None))


def _measured(members: list[PooledReply]) -> Update:
    """What devices measured that send nothing back."""
    first = members[0]
    parts = [Part(member.task.task, member.update.stats) for member in members]
    return Update(first.task.task, first.task.round, total(parts))
