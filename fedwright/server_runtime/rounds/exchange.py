"""Speaks with the devices: tasks until acknowledged, blobs on request, uploads pulled a few at a time."""

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec import structs

from fedwright.protocol import codec, topics
from fedwright.protocol.blobs import BlobStore, Download, Uploads, inlined
from fedwright.protocol.errors import BadBlob, BadMessage
from fedwright.protocol.link.base import Link, Received
from fedwright.protocol.messages import (
    Ack,
    Answer,
    Ask,
    BlobRef,
    Carried,
    Challenge,
    Chunk,
    Dismiss,
    Envelope,
    Get,
    Gone,
    Held,
    Here,
    Lost,
    Message,
    Recall,
    Refusal,
    Report,
    Shown,
    Task,
    Update,
)
from fedwright.server_runtime.revocation import Gate
from fedwright.server_runtime.rounds.edges import Edges, MaySpeak, anybody
from fedwright.server_runtime.rounds.serving import Serving
from fedwright.server_runtime.rounds.showing import Showing

log = logging.getLogger(__name__)

SERVER = "server"
# A device acknowledges a task as soon as it is in its journal; silence this long means it was not heard.
RESEND_S = 5.0
# Uploads pulled at the same time: enough to fill a link, few enough that the broker and the disk stay calm.
MAX_PULLS = 8
MAX_PULL_BYTES = 256 * 1024 * 1024
# An upload of which nothing came for so long does not count among these; a slow one still goes on.
STALL_S = 10.0


@dataclass(frozen=True)
class Heard:
    """A device said something that the coordinator decides on; `payload` are the bytes as they came."""

    device: str
    boot: str
    message: Report | Update | Refusal | Gone | Answer
    payload: bytes = b""


@dataclass(frozen=True)
class Pulled:
    """A blob that was asked for is complete in the store, or (`problem`) cannot be had."""

    device: str
    sha256: str
    problem: str = ""


@dataclass
class _Outgoing:
    """A task on its way, made of bytes when somebody else signed it."""

    device: str
    task: Task | bytes
    sent_s: float


@dataclass
class _Pull:
    device: str
    download: Download
    progress_s: float


class Exchange:
    """The server's half of the protocol; single-threaded, driven by `poll`."""

    def __init__(
        self,
        link: Link,
        fleet: str,
        *,
        blobs: BlobStore,
        sign: codec.Sign | None = None,
        may_speak: MaySpeak = anybody,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.boot = codec.new_id()
        self._edges = Edges(may_speak)
        self.gate = Gate()
        """Whom to ignore; replaced where there is a list of them."""
        self._link = link
        self._fleet = fleet
        self._blobs = blobs
        self._sign = sign
        self._uploads = Uploads(blobs)
        self._serving = Serving(self._uploads, self._send_chunk, clock=clock)
        self._showing = Showing(blobs, self._uploads, pull=self.pull, send=self._send)
        self._clock = clock
        self._connects = link.connects
        self._outgoing: dict[str, _Outgoing] = {}
        # Tasks that went to an edge: for which device, to which edge.
        self._at: dict[str, tuple[str, str]] = {}
        self._announced: dict[str, str] = {}
        self._pulls: dict[str, _Pull] = {}
        self._waiting: deque[tuple[str, BlobRef]] = deque()
        # Blobs that came inline or are here already.
        self._ready: deque[tuple[str, BlobRef]] = deque()
        self._warned: set[str] = set()
        link.subscribe(topics.up_all(fleet))
        self.challenge_all()

    def challenge_all(self) -> None:
        """Ask every device that is alive to report."""
        self._link.send(topics.shared(self._fleet), self._encode(Challenge()))

    def challenge(self, device: str) -> None:
        """Ask whoever is alive under this id to report."""
        self._send(device, Challenge())

    def assign(self, device: str, boot: str, task: Task) -> None:
        """Send a task to one boot of a device until it is acknowledged."""
        self._serve(task, (task.artifact, task.frozen, task.public))
        self._edges.settle(device, boot)
        edge = self._edges.edge_of(device)
        # The artifact is never inline: a device that has it in its cache need not get it again. Nor is anything that
        # an edge fetches once for all its devices.
        weights = inlined(self._blobs, task.weights) if edge is None else task.weights
        # A device that has gone elsewhere since the plan was made is no longer waited for by the edge it left.
        pool = task.pool if task.pool is not None and task.pool.edge == edge else None
        task = structs.replace(task, boot=boot, weights=weights, pool=pool)
        self._outgoing[task.task] = _Outgoing(device, task, self._clock())
        if edge is not None:
            self._at[task.task] = (device, edge)
        self._send(device, task)

    def pass_on(self, device: str, task: Task, payload: bytes) -> None:
        """Send a task that somebody else made and signed until it is acknowledged; its blobs are ours to serve."""
        self.offer(task)
        self._outgoing[task.task] = _Outgoing(device, payload, self._clock())
        self._publish(device, payload)

    def offer(self, task: Task) -> None:
        """Serve the blobs of a task, which are here; its weights are those of its pool."""
        self._serve(task, (task.artifact, task.weights, task.frozen, task.public))

    def _serve(self, task: Task, common: Sequence[BlobRef | None]) -> None:
        """Answer for the blobs of a task; those that are common to several devices go out once for all who ask."""
        for ref in (task.artifact, task.weights, task.sides, task.frozen, task.public):
            if ref is not None:
                self._uploads.serve(ref)
        for ref in common:
            if ref is not None:
                self._serving.offer_common(ref.sha256)

    def send_bytes(self, device: str, payload: bytes) -> None:
        """Send a message that somebody else made."""
        self._publish(device, payload)

    def say_held(self, device: str, task: str) -> None:
        """Tell a device that its answer is durable here and will go on."""
        self._send(device, Held(task))

    def say_here(self) -> None:
        """Tell every device that somebody serves this fleet."""
        self._link.send(topics.shared(self._fleet), self._encode(Here()), reliable=False)

    def stop_serving(self, sha256: str) -> None:
        """A blob is no longer needed by anybody."""
        self._uploads.withdraw(sha256)

    def edge_of(self, device: str) -> str | None:
        """The edge that a device is reached through, if any."""
        return self._edges.edge_of(device)

    def recall(self, edge: str, task: str) -> None:
        """Tell an edge not to count on a task any longer."""
        self._publish(edge, self._encode(Recall(task)))

    def ask(self, device: str, ask: Ask) -> None:
        """Ask one boot of a device for its part in a sum."""
        self._send(device, ask)

    def withdraw(self, task: str) -> None:
        """Stop sending a task."""
        self._outgoing.pop(task, None)
        self._at.pop(task, None)

    def acknowledge(self, device: str, task: str, *, problem: str = "") -> None:
        """Tell a device that its update or refusal is durable here (or was not used, and why)."""
        self._send(device, Ack(task, problem))

    def dismiss(self, device: str, dismissal: Dismiss) -> None:
        """Tell a device to leave."""
        self._send(device, dismissal, boot=dismissal.boot)

    def pull(self, device: str, ref: BlobRef) -> None:
        """Fetch a blob from a device; a Pulled event tells when it is here."""
        if ref.inline is not None or self._blobs.has(ref.sha256):
            self._ready.append((device, ref))
        elif ref.sha256 not in self._pulls and all(waiting.sha256 != ref.sha256 for _, waiting in self._waiting):
            self._waiting.append((device, ref))

    def poll(self, timeout_s: float) -> list[Heard | Pulled]:
        """Do what is due, then wait for messages at most this long and return what the coordinator must know."""
        events: list[Heard | Pulled] = []
        events += [Heard(device, boot, Gone()) for device, boot in self.gate.leavers()]
        self._admit_pulls(events)
        self._tend()
        due_s = self._serving.due_s()
        received = self._link.receive(0.0 if events else timeout_s if due_s is None else min(timeout_s, due_s))
        while received is not None:
            self._take(received, events)
            received = self._link.receive(0.0) if len(events) < 64 else None
        for event in events:
            if isinstance(event, Pulled) and not event.problem:
                self._showing.pulled(event.sha256)
        self._serving.flush()
        return events

    def _tend(self) -> None:
        now = self._clock()
        if self._link.connects != self._connects:
            self._connects = self._link.connects
            self.challenge_all()
            for pull in self._pulls.values():
                pull.download.lost_link()
        for outgoing in self._outgoing.values():
            if now - outgoing.sent_s >= RESEND_S:
                outgoing.sent_s = now
                if isinstance(outgoing.task, bytes):
                    self._publish(outgoing.device, outgoing.task)
                else:
                    self._send(outgoing.device, outgoing.task)
        for sha256, pull in self._pulls.items():
            self._ask(sha256, pull)

    def _admit_pulls(self, events: list[Heard | Pulled]) -> None:
        while self._ready:
            self._begin_pull(*self._ready.popleft(), events)
        while self._waiting and self._has_room(self._waiting[0][1]):
            self._begin_pull(*self._waiting.popleft(), events)

    def _begin_pull(self, device: str, ref: BlobRef, events: list[Heard | Pulled]) -> None:
        # What an edge carried lies there.
        device = self._announced.pop(ref.sha256, device)
        try:
            pull = _Pull(device, Download(self._blobs, ref), self._clock())
            if not pull.download.done:
                self._pulls[ref.sha256] = pull
                return
            pull.download.finish()
        except BadBlob as err:
            events.append(Pulled(device, ref.sha256, str(err)))
            return
        events.append(Pulled(device, ref.sha256))

    def _has_room(self, ref: BlobRef) -> bool:
        """Whether another upload may start beside those that come in; one alone always may."""
        since_s = self._clock() - STALL_S
        sizes = [pull.download.ref.size_bytes for pull in self._pulls.values() if pull.progress_s > since_s]
        return not sizes or (len(sizes) < MAX_PULLS and sum(sizes) + ref.size_bytes <= MAX_PULL_BYTES)

    def _drop_pulls(self, device: str) -> None:
        """Forget what is fetched from a device that left; it says again what it has when it is back."""
        self._pulls = {sha256: pull for sha256, pull in self._pulls.items() if pull.device != device}
        self._waiting = deque(waiting for waiting in self._waiting if waiting[0] != device)

    def _ask(self, sha256: str, pull: _Pull) -> None:
        wanted = pull.download.wanted(self._clock())
        if wanted:
            self._publish(pull.device, self._encode(Get(sha256, wanted)), reliable=False)

    def _take(self, received: Received, events: list[Heard | Pulled]) -> None:
        device = topics.device_of(received.topic)
        if self.gate.bars(device):
            return
        try:
            envelope = codec.decode(received.payload)
        except BadMessage as err:
            self._warn(device, str(err))
            return
        if envelope.sender != device:
            self._warn(device, f"message claims to be from {envelope.sender}")
            return
        body = envelope.body
        if isinstance(body, Report | Update | Refusal | Gone | Answer):
            self._take_word(device, None, envelope, bytes(received.payload), events)
        elif isinstance(body, Carried):
            self._take_carried(device, body, events)
        elif isinstance(body, Shown) and self._edges.is_edge(device):
            self._showing.take(device, body)
        elif isinstance(body, Ack):
            self._outgoing.pop(body.of, None)
        else:
            self._take_transfer(device, body, events)

    def _take_transfer(self, device: str, body: Message, events: list[Heard | Pulled]) -> None:
        """A request for pieces of a blob, a piece of one, or the news that it is lost."""
        if isinstance(body, Get):
            self._serving.request(device, body)
        elif isinstance(body, Chunk):
            self._take_chunk(device, body, events)
        elif isinstance(body, Lost) and self._pulled_from(device, body.sha256) is not None:
            del self._pulls[body.sha256]
            events.append(Pulled(device, body.sha256, "the device no longer holds the blob it announced"))

    def _take_carried(self, edge: str, carried: Carried, events: list[Heard | Pulled]) -> None:
        try:
            envelope = self._edges.open(edge, carried)
        except BadMessage as err:
            self._warn(edge, str(err))
            return
        if not self._edges.is_stale(carried.device, edge, envelope):
            self._take_word(carried.device, edge, envelope, carried.payload, events)

    def _take_word(
        self, device: str, edge: str | None, envelope: Envelope, payload: bytes, events: list[Heard | Pulled]
    ) -> None:
        """A report, an answer or the end of a connection, straight from a device or by way of an edge."""
        body = envelope.body
        if not isinstance(body, Report | Update | Refusal | Gone | Answer) or self.gate.bars(device):
            return
        self.gate.note(device, envelope.boot)
        if isinstance(body, Report) and body.edge:
            self._edges.hear(device, envelope.boot)
            self._showing.back(device)
            self._send(device, Here())
        elif isinstance(body, Report):
            self._move(device, edge, envelope, events)
        elif isinstance(body, Gone):
            if edge is not None and self._edges.edge_of(device) != edge:
                return
            self._drop_pulls(device)
            if self._edges.is_alive(device, envelope.boot):
                self._showing.lose(device)
            events += [Heard(behind, boot, body) for behind, boot in self._edges.lose(device, envelope.boot)]
        elif isinstance(body, Update) and edge is not None and body.tensors is not None:
            self._announced[body.tensors.sha256] = edge
        events.append(Heard(device, envelope.boot, body, payload))

    def _move(self, device: str, edge: str | None, envelope: Envelope, events: list[Heard | Pulled]) -> None:
        """A device reports; when it comes another way than before, the edge it left shall not wait for it."""
        left = self._edges.arrive(device, edge, envelope)
        if left is None:
            return
        events.append(Heard(device, left.boot, Gone()))
        for task, (whose, where) in list(self._at.items()):
            if whose == device and where == left.edge:
                del self._at[task]
                self.recall(where, task)

    def _take_chunk(self, device: str, chunk: Chunk, events: list[Heard | Pulled]) -> None:
        pull = self._pulled_from(device, chunk.sha256)
        if pull is None:
            return
        if pull.download.accept(chunk.index, chunk.data):
            pull.progress_s = self._clock()
        if not pull.download.done:
            self._ask(chunk.sha256, pull)
            return
        del self._pulls[chunk.sha256]
        try:
            pull.download.finish()
        except BadBlob as err:
            events.append(Pulled(device, chunk.sha256, str(err)))
            return
        events.append(Pulled(device, chunk.sha256))

    def _pulled_from(self, device: str, sha256: str) -> _Pull | None:
        pull = self._pulls.get(sha256)
        return pull if pull is not None and pull.device == device else None

    def _send_chunk(self, device: str | None, message: Chunk | Lost) -> None:
        topic = topics.shared(self._fleet) if device is None else topics.down(self._fleet, device)
        head, tail = codec.encode_parts(message, sender=SERVER, boot=self.boot)
        self._link.send(topic, head, tail=tail, reliable=False)

    def _send(self, device: str, message: Message, *, boot: str = "") -> None:
        """Send to a device, by way of its edge when it has one; `boot` for one whose id is contested."""
        edge = self._edges.way_to(device, boot)
        payload = self._encode(message)
        if edge is None:
            self._publish(device, payload)
        else:
            self._publish(edge, self._encode(Carried(device, payload)))

    def _publish(self, device: str, payload: bytes, *, reliable: bool = True) -> None:
        self._link.send(topics.down(self._fleet, device), payload, reliable=reliable)

    def _encode(self, message: Message) -> bytes:
        return codec.encode(message, sender=SERVER, boot=self.boot, sign=self._sign)

    def _warn(self, device: str, problem: str) -> None:
        level = logging.DEBUG if device in self._warned else logging.WARNING
        self._warned.add(device)
        log.log(level, "device %s: %s (further such messages are logged at debug level)", device, problem)
