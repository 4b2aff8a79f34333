"""THE LOOP of a device: report → task → fetch what is missing → check and train → update, until it is dismissed.

Messages are handled in this thread; a worker thread waits for the process that trains, so that a device that trains
still answers. The journal says at every moment what is in hand, so that a restart continues instead of beginning, and
how often that was begun, so that a task which ends whatever trains it is refused in the end.
"""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from msgspec import structs

from fedwright.device_runtime.answers import refusal_of, update_of
from fedwright.device_runtime.downloads import Downloads
from fedwright.device_runtime.resources import Resources
from fedwright.device_runtime.runner import Crashed, Done
from fedwright.device_runtime.secure.masked_blob import MaskedBlob
from fedwright.device_runtime.server_choice import DeviceIdentity, ServerChoice
from fedwright.device_runtime.status import StatusTeller
from fedwright.device_runtime.store.journal import JournalEntry
from fedwright.device_runtime.store.kept_model import KeptModel
from fedwright.device_runtime.task_inputs import Stopped, inputs_of
from fedwright.protocol.blobs import inlined
from fedwright.protocol.errors import BadBlob, BadMessage, DeviceError
from fedwright.protocol.link.base import Link, Received
from fedwright.protocol.messages import (
    Ack,
    Ask,
    Challenge,
    Chunk,
    Dismiss,
    Get,
    Gone,
    Held,
    Located,
    Lost,
    Message,
    Refusal,
    SumAsk,
    Task,
    Update,
)
from fedwright.protocol.uploads import Uploads

log = logging.getLogger(__name__)

# The server acknowledges an update as soon as it is on its disk; silence this long means it was not heard.
RESEND_S = 5.0
TICK_S = 0.5
# An edge has the answer on its disk, and passes the server's word on when that comes.
HELD_RESEND_S = 60.0
# So long the server's word on an update is waited for before the next task is begun without it.
WORD_S = 30.0


class Agent:
    """One device on a link. `run` returns when the device is dismissed or `stop` was called."""

    def __init__(
        self,
        link: Link,
        identity: DeviceIdentity,
        resources: Resources,
        *,
        leave_when_over: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._link, self._identity = link, identity
        self._have = resources
        self._leave_when_over = leave_when_over
        self._clock = clock
        self._downloads = Downloads(
            resources.blobs,
            ask=lambda get: self._send(get, reliable=False),
            wake=link.wake,
            fetcher=resources.fetcher,
            clock=clock,
        )
        self._kept = KeptModel(resources.blobs)
        self._uploads = Uploads(resources.blobs)
        self._masked = MaskedBlob(resources.blobs, self._uploads)
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="train")
        self._work: Future[Done | Refusal] | None = None
        self._give_up = threading.Event()
        self._stopping = threading.Event()
        self._answered_s = 0.0
        self._held = False
        # A task that came before the server's word on the last update, and when.
        self._next: tuple[Task, float] | None = None
        self._warned = False
        # Facts of the data that the run asked for.
        self._asked: tuple[str, ...] = ()
        self._home = ServerChoice(identity, clock=clock)
        self._status = StatusTeller(resources, clock=clock)

    def run(self) -> None:
        """Serve until dismissed; IdentityTaken or DeviceError when the server turned this device away."""
        self._settle()
        connects = -1
        try:
            self._begin()
            while not self._stopping.is_set():
                if self._link.connects != connects:
                    connects = self._link.connects
                    self._came_up()
                busy = self._work is not None or self._downloads or self._home.has_others
                received = self._link.receive(TICK_S if busy else self._have.pause_s(TICK_S))
                if received is not None:
                    self._take(received)
                self._tend()
                if self._home.is_silent(connected=self._link.connected):
                    self._move()
        finally:
            self._give_up.set()
            self._downloads.clear()
            self._have.close()
            self._worker.shutdown()
            if self._work is not None and not isinstance(self._work.exception(), Crashed):
                self._have.journal.excuse()

    def stop(self) -> None:
        """Make `run` return soon; safe from any thread and from signal handlers."""
        self._stopping.set()
        self._give_up.set()
        self._link.wake()

    def _settle(self) -> None:
        for topic in self._home.down:
            self._link.subscribe(topic)

    def _move(self) -> None:
        """Go to the next edge with what is in hand."""
        log.warning("edge %s says nothing; going elsewhere", self._home.fleet)
        self.leave()
        self._home.move()
        # The next one has nothing of it before the task has come there too.
        self._downloads.clear()
        self._held = False
        self._forsake()
        self._settle()
        self._came_up()

    def _forsake(self) -> None:
        """Give up what was in hand for all devices of the edge that is left; it may have counted there already."""
        entry = self._have.journal.forsake()
        if entry is not None:
            self._drop_work()
            self._have.settle(entry.task.task, used=True)
            self._forget_blobs(entry)

    def leave(self) -> None:
        """Tell the server that this device goes away."""
        self._send(Gone())

    def _came_up(self) -> None:
        """After every (re)connection: the server may have missed us, and chunks under way are lost."""
        self._report()
        if self._have.journal.entry is None:
            log.info("reported to fleet %s; waiting for a task", self._home.fleet)
        self._downloads.lost_link()
        self._send_reply()

    def _report(self) -> None:
        self._send(self._have.report(self._asked))

    def _take(self, received: Received) -> None:
        try:
            envelope = self._home.open(received.topic, received.payload)
        except BadMessage as err:
            log.log(logging.DEBUG if self._warned else logging.WARNING, "from the server: %s", err)
            self._warned = True
            return
        if envelope is not None:
            self._obey(envelope.body)

    def _obey(self, body: Message) -> None:
        if isinstance(body, Task):
            self._take_task(body)
        elif isinstance(body, Chunk):
            self._take_chunk(body)
        elif isinstance(body, Get):
            for message in self._uploads.answer(body):
                self._status.sent(message)
                self._send(message, reliable=False)
        elif isinstance(body, Ack):
            self._take_ack(body)
        else:
            self._take_rare(body)

    def _take_rare(self, body: Message) -> None:
        """Messages that are not part of a task's ordinary way."""
        if isinstance(body, Challenge):
            self._take_challenge(body)
        elif isinstance(body, Lost) and body.sha256 in self._downloads:
            self._refuse_for(BadBlob(f"the server no longer holds blob {body.sha256[:12]}"))
        elif isinstance(body, Located):
            self._downloads.locate(body)
        elif isinstance(body, Held):
            self._held = self._have.journal.entry is not None and self._have.journal.entry.task.task == body.of
        elif isinstance(body, Dismiss):
            self._take_dismiss(body)
        elif isinstance(body, Ask | SumAsk) and body.boot == self._identity.boot:
            for answer in self._have.answer(body, self._masked):
                self._send(answer)

    def _take_challenge(self, challenge: Challenge) -> None:
        """Say who is here, with what a run asks of the data as far as the owner lets it be told."""
        self._asked = self._have.asked_by(challenge, self._asked, now_s=self._clock())
        self._report()

    def _take_task(self, task: Task) -> None:
        if not self._home.is_for_us(task):
            return
        entry = self._have.journal.entry
        known = entry is not None and entry.task.task == task.task
        if not known and not self._have.journal.is_finished(task.task):
            if self._put_off(task):
                self._send_reply()
                return
            self._drop_work()
            self._have.journal.accept(task)
        self._send(Ack(task.task))
        if task.shard is not None and task.pool is not None and self._have.journal.is_finished(task.pool.stage or ""):
            self._refuse_for(DeviceError("it has answered in this round at another edge"))
        if known:
            # A server that comes with it again may have started anew and forgotten what was asked of it.
            self._downloads.lost_link()
            self._send_reply()
        self._begin()

    def _put_off(self, task: Task) -> bool:
        """Keep a task until the server's word on the update in hand has come; False when it need not wait.

        What that update left behind here, to be made up for or to be trained on, counts only if it was used. A server
        that sends a task has closed the one before, so that it answers when it hears of it again.
        """
        entry = self._have.journal.entry
        if entry is None or not isinstance(entry.answer, Update) or entry.answer.tensors is None:
            return False
        _, since_s = self._next or (task, self._clock())
        self._next = (task, since_s)
        return self._clock() - since_s < WORD_S

    def _begin(self) -> None:
        """Go on with the task in hand: ask for blobs that are missing, or train when all are here."""
        entry = self._have.journal.entry
        if entry is None or entry.answer is not None or self._work is not None:
            return
        try:
            wanted = self._kept.wanted(entry.task)
            self._have.check(entry.task, sum(self._traffic()), wanted)
            for ref in wanted:
                self._downloads.fetch(ref)
            ready = not self._downloads and self._kept.complete(entry.task)
        except (BadBlob, DeviceError) as err:
            self._refuse_for(err)
            return
        if ready:
            self._start(entry.task)
        elif not self._downloads:
            self._begin()

    def _take_chunk(self, chunk: Chunk) -> None:
        self._continue(lambda: self._downloads.take(chunk))

    def _continue(self, fetch: Callable[[], bool]) -> None:
        """Have something more of what is missing, and go on when a blob is whole with it."""
        try:
            whole = fetch()
        except (BadBlob, DeviceError) as err:
            self._refuse_for(err)
            return
        if whole:
            self._begin()

    def _start(self, task: Task) -> None:
        entry = self._have.journal.entry
        if entry is not None and not self._have.journal.begin(self._have.checkpoint.step(task.task)):
            problem = entry.problem or "the agent itself ended each time"
            self._refuse_for(DeviceError(f"begun {entry.attempts} times, never came to an end: {problem}"))
            return
        # One for each task: the one before may not have ended yet.
        self._give_up = threading.Event()
        log.info("%s: task %s begins", task.title, task.task)
        inputs = inputs_of(task, self._have.blobs.path)
        self._work = self._worker.submit(self._have.runner.run, task, inputs, should_stop=self._give_up.is_set)
        self._work.add_done_callback(lambda _: self._link.wake())

    def _tend(self) -> None:
        now = self._clock()
        self._continue(self._downloads.tend)
        if self._work is not None and self._work.done():
            work, self._work = self._work, None
            self._finish_work(work)
        elif now - self._answered_s >= (HELD_RESEND_S if self._held else RESEND_S):
            self._send_reply()
        status = self._status.due(self._downloads.coming, working=self._work is not None)
        if status is not None:
            self._send(status, reliable=False)
        if self._have.measurement.tend(idle=self._have.may_measure()):
            self._report()

    def _finish_work(self, work: Future[Done | Refusal]) -> None:
        entry = self._have.journal.entry
        err = work.exception()
        if isinstance(err, Stopped) or entry is None:
            return
        if isinstance(err, Crashed):
            log.warning("%s: %s", entry.task.title, err)
            self._have.journal.crashed(str(err))
            self._begin()
            return
        if err is not None:
            self._refuse_for(err)
            return
        outcome = work.result()
        try:
            self._reply(outcome if isinstance(outcome, Refusal) else self._update(entry.task, outcome))
        except (DeviceError, OSError) as failed:
            self._refuse_for(failed)

    def _refuse_for(self, err: BaseException) -> None:
        """Tell the server why the task in hand came to nothing."""
        entry = self._have.journal.entry
        if entry is None:
            return
        self._downloads.clear()
        self._reply(refusal_of(entry.task.task, err))

    def _update(self, task: Task, done: Done) -> Update:
        if task.sum is not None and self._have.sums is not None:
            self._have.sums.take(task, done.stats, Path(done.blob))
            return update_of(task, done.stats, None, self._traffic())
        # The server's choice of chunk holds both ways: some brokers take only small messages.
        chunk_bytes = task.weights.chunk_bytes
        ref = self._uploads.offer_file(Path(done.blob), chunk_bytes=chunk_bytes) if done.blob else None
        return update_of(task, done.stats, ref, self._traffic())

    def _traffic(self) -> tuple[int, int]:
        """Bytes that went out and came in, over the broker and beside it."""
        return self._link.sent_bytes, self._link.received_bytes + self._downloads.fetched_bytes

    def _reply(self, answer: Update | Refusal) -> None:
        entry = self._have.journal.entry
        if entry is not None and isinstance(answer, Refusal):
            log.warning("%s: task refused: %s", entry.task.title, answer.detail)
        self._have.journal.answer(answer)
        self._send_reply()

    def _send_reply(self) -> None:
        """Send the answer that the server has not acknowledged yet, its tensors inline when they are small."""
        entry = self._have.journal.entry
        if entry is None or entry.answer is None:
            return
        self._answered_s = self._clock()
        answer = entry.answer
        if isinstance(answer, Update) and answer.tensors is not None:
            self._uploads.serve(answer.tensors)
            answer = structs.replace(answer, tensors=inlined(self._have.blobs, answer.tensors))
        self._send(answer)

    def _take_ack(self, ack: Ack) -> None:
        if (entry := self._have.journal.entry) is None or entry.answer is None or entry.task.task != ack.of:
            log.log(logging.WARNING if ack.problem else logging.DEBUG, "an earlier answer: %s", ack.problem or "known")
            return
        word = f"did not use the answer: {ack.problem}" if ack.problem else "has the answer; waiting for a task"
        log.log(logging.WARNING if ack.problem else logging.INFO, "%s: the server %s", entry.task.title, word)
        self._have.settle(ack.of, used=not ack.problem)
        self._have.journal.finish()
        self._have.checkpoint.clear()
        self._forget_blobs(entry)
        if self._next is not None:
            self._take_task(self._next[0])

    def _forget_blobs(self, entry: JournalEntry) -> None:
        """Weights that were sent, one way or the other, are used once, but for those that a later task builds on."""
        for ref in self._kept.spent(entry):
            self._uploads.withdraw(ref.sha256)
            self._have.blobs.remove(ref.sha256)

    def _drop_work(self) -> None:
        """The server moved on: what is in hand is no longer wanted."""
        self._held, self._next = False, None
        self._downloads.clear()
        if self._work is not None:
            self._give_up.set()
            self._work = None
        self._have.checkpoint.clear()

    def _take_dismiss(self, dismiss: Dismiss) -> None:
        if self._home.is_over(dismiss) and self._leave_when_over:
            self._stopping.set()

    def _send(self, message: Message, *, reliable: bool = True) -> None:
        head, tail = self._home.wrap(message)
        self._link.send(self._home.up, head, tail=tail, reliable=reliable)
