"""Speaks with the devices: tasks until acknowledged, blobs on request, uploads pulled a few at a time."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec import structs

from fedwright.protocol import codec, topics
from fedwright.protocol.blobs import BlobStore
from fedwright.protocol.errors import BadMessage
from fedwright.protocol.link.base import Buffer, Link, Received
from fedwright.protocol.messages import (
    Ack,
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
    Located,
    Lost,
    Message,
    Recall,
    Refusal,
    Report,
    Shown,
    Status,
    SumAnswer,
    SumAsk,
    Task,
    Update,
)
from fedwright.protocol.task_blobs import blobs_of, common_blobs, with_inline
from fedwright.protocol.uploads import Uploads
from fedwright.server_runtime.fleet.revocation import Gate
from fedwright.server_runtime.transport.chunk_server import ChunkServer
from fedwright.server_runtime.transport.cluster_relay import ClusterRelay
from fedwright.server_runtime.transport.edge_routes import ANYBODY, EdgeRights, EdgeRoutes, VerifyDevice
from fedwright.server_runtime.transport.message_limits import MessageLimits
from fedwright.server_runtime.transport.outgoing_tasks import OutgoingTasks, Payload
from fedwright.server_runtime.transport.plain_words import plain_words
from fedwright.server_runtime.transport.upload_puller import Pulled, UploadPuller

log = logging.getLogger(__name__)

SERVER = "server"
# Whoever floods us does not keep the coordinator from looking at its deadlines.
TAKING_S = 0.25
# Of so many devices the log has a line; where anybody may give himself an id there may be any number.
MOST_WARNED = 1000
# How many devices a second say what they are at; of a large fleet each does so the more seldom.
STATUSES_PER_S = 50

Word = Report | Update | Refusal | Gone | SumAnswer | Status
"""What a device says that the coordinator decides on."""


@dataclass(frozen=True)
class Heard:
    """A device said something that the coordinator decides on; `payload` are the bytes as they came."""

    device: str
    boot: str
    message: Word
    payload: bytes = b""


class DeviceChannel:
    """The server's half of the protocol; single-threaded, driven by `poll`."""

    def __init__(
        self,
        link: Link,
        fleet: str,
        *,
        blobs: BlobStore,
        sign: codec.Sign | None = None,
        edge_rights: EdgeRights = ANYBODY,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.boot = codec.new_id()
        self.order = codec.Order()
        """Of what was said last; a server that signs gives it the epoch of its life."""
        self._edges = EdgeRoutes(edge_rights)
        self.gate = Gate()
        """Whom to ignore; replaced where there is a list of them."""
        self._link = link
        self._fleet = fleet
        self._blobs = blobs
        self._sign = sign
        self._uploads = Uploads(blobs)
        self._serving = ChunkServer(self._uploads, self._send_chunk, clock=clock)
        self._pulling = UploadPuller(blobs, self._send_get, clock=clock)
        self._showing = ClusterRelay(blobs, self._uploads, pull=self.pull, send=self._send)
        self._clock = clock
        self._connects = link.connects
        self._outgoing = OutgoingTasks(self._send_again, clock=clock)
        # Tasks that went to an edge: for which device, to which edge.
        self._at: dict[str, tuple[str, str]] = {}
        self._warned: set[str] = set()
        # Devices that had a task in this life of the server.
        self._served: set[str] = set()
        self._limits = MessageLimits(enrolled=sign is not None, clock=clock)
        link.subscribe(topics.up_all(fleet))
        self.challenge_all()

    def require_signatures(self, verify: VerifyDevice) -> None:
        """From now on hear only what devices and edges signed themselves."""
        self._edges.verify_device = verify

    def challenge_all(self) -> None:
        """Ask every device that is alive to report."""
        self._link.send(topics.shared(self._fleet), self._encode(Challenge()))

    def challenge(self, device: str, tell: Sequence[str] = (), *, profile: bool = False) -> None:
        """Ask whoever is alive under this id to report, with these facts of its data; profile: measured anew."""
        self._send(device, Challenge(profile, list(tell)))

    def assign(self, device: str, boot: str, task: Task) -> None:
        """Send a task to one boot of a device until it is acknowledged."""
        self._serve(task, common_blobs(task))
        self._edges.settle(device, boot)
        edge = self._edges.edge_of(device)
        # The artifact is never inline: a device that has it in its cache need not get it again. Nor is anything that
        # an edge fetches once for all its devices.
        task = structs.replace(task, patch=None, keeps=False) if edge is not None or task.shard is not None else task
        task = with_inline(self._blobs, task) if edge is None else task
        # A device that has gone elsewhere since the plan was made is no longer waited for by the edge it left.
        pool = task.pool if task.pool is not None and task.pool.edge == (task.shard or edge) else None
        self._served.add(device)
        status_s = max(1.0, len(self._served) / STATUSES_PER_S)
        task = structs.replace(task, boot=boot, pool=pool, status_s=status_s)
        self._outgoing.add(task.task, [device], task)
        if edge is not None:
            self._at[task.task] = (device, edge)
        self._send(device, task)

    def pass_on(self, device: str, task: Task, payload: bytes) -> None:
        """Send a task that somebody else made and signed until it is acknowledged; its blobs are ours to serve."""
        self.offer(task)
        self._outgoing.add(task.task, [device], payload)
        self._publish(device, payload)

    def pass_on_to_all(self, devices: Sequence[str], task: Task, payload: bytes) -> None:
        """The same at once for all devices that are here."""
        self.offer(task)
        self._outgoing.add(task.task, devices, payload)
        self.send_to_all(payload)

    def is_heard(self, device: str, task: str) -> bool:
        """Whether a device has acknowledged a task that it was sent."""
        return not self._outgoing.is_waiting(task, device)

    def offer(self, task: Task) -> None:
        """Serve the blobs of a task, which are here; its weights are those of its pool."""
        self._serve(task, [*common_blobs(task), task.weights])

    def _serve(self, task: Task, common: Sequence[BlobRef]) -> None:
        """Answer for the blobs of a task; those that are common to several devices go out once for all who ask."""
        for ref in blobs_of(task):
            self._uploads.serve(ref)
        for ref in common:
            self._serving.offer_common(ref.sha256)

    def send_bytes(self, device: str, payload: bytes) -> None:
        """Send a message that somebody else made."""
        self._publish(device, payload)

    def send_to_all(self, payload: bytes) -> None:
        """Send a message that somebody else made to every device that is here."""
        self._link.send(topics.shared(self._fleet), payload)

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

    def ask(self, device: str, ask: SumAsk) -> None:
        """Ask one boot of a device for its part in a sum."""
        self._send(device, ask)

    def withdraw(self, task: str) -> None:
        """Stop sending a task."""
        self._outgoing.withdraw(task)
        self._at.pop(task, None)

    def acknowledge(self, device: str, task: str, *, problem: str = "") -> None:
        """Tell a device that its update or refusal is durable here (or was not used, and why)."""
        self._send(device, Ack(task, problem))

    def dismiss(self, device: str, dismissal: Dismiss) -> None:
        """Tell a device to leave."""
        self._send(device, dismissal, boot=dismissal.boot)

    def pull(self, device: str, ref: BlobRef) -> None:
        """Fetch a blob from a device; a Pulled event tells when it is here."""
        self._pulling.pull(device, ref)

    def poll(self, timeout_s: float) -> list[Heard | Pulled]:
        """Do what is due, then wait for messages at most this long and return what the coordinator must know."""
        events: list[Heard | Pulled] = []
        for device, boot in self.gate.leavers():
            events.append(Heard(device, boot, Gone()))
            self.recall_all(device)
        self._pulling.admit()
        events += self._pulling.events()
        self._tend()
        due_s = self._serving.due_s()
        received = self._link.receive(0.0 if events else timeout_s if due_s is None else min(timeout_s, due_s))
        until_s = self._clock() + TAKING_S
        while received is not None:
            self._take(received, events)
            events += self._pulling.events()
            received = self._link.receive(0.0) if len(events) < 64 and self._clock() < until_s else None
        for event in events:
            if isinstance(event, Pulled) and not event.problem:
                self._showing.pulled(event.sha256)
        self._serving.flush()
        return events

    def _tend(self) -> None:
        if self._link.connects != self._connects:
            self._connects = self._link.connects
            self.challenge_all()
            self._pulling.lost_link()
        self._outgoing.tend()
        self._pulling.tend()

    def _send_again(self, device: str, task: Payload) -> None:
        if isinstance(task, bytes):
            self._publish(device, task)
        else:
            self._send(device, task)

    def _open(self, device: str, payload: Buffer) -> Envelope | None:
        """What a device or an edge says; None when it is not to be heard."""
        if self.gate.bars(device) or self._limits.is_muted(device):
            return None
        try:
            envelope = self._edges.decoded(device, payload)
        except BadMessage as err:
            self._waste(device, str(err))
            return None
        if envelope.sender != device:
            self._waste(device, f"message claims to be from {envelope.sender}")
            return None
        return None if self._is_too_much(device, envelope.body, len(payload)) else envelope

    def _take(self, received: Received, events: list[Heard | Pulled]) -> None:
        device = topics.device_of(received.topic)
        envelope = self._open(device, received.payload)
        if envelope is None:
            return
        body = envelope.body
        if isinstance(body, Word):
            self._take_word(device, None, envelope, bytes(received.payload), events)
        elif isinstance(body, Carried):
            self._take_carried(device, body, events)
        elif isinstance(body, Shown) and self._edges.is_edge(device):
            self._showing.take(device, body)
        elif isinstance(body, Ack):
            self._outgoing.acknowledged(body.of, device)
        elif isinstance(body, Get):
            # Of a blob that is here a resumed server has not got to the task yet; the device asks again.
            if self._uploads.serves(body.sha256) or not self._blobs.has(body.sha256):
                self._serving.request(device, body)
        elif isinstance(body, Chunk | Lost):
            self._pulling.take(device, body)

    def _take_carried(self, edge: str, carried: Carried, events: list[Heard | Pulled]) -> None:
        try:
            envelope = self._edges.open(edge, carried)
        except BadMessage as err:
            self._waste(edge, str(err))
            return
        stale = self._edges.is_stale(carried.device, edge, envelope)
        if not stale and not self._is_too_much(carried.device, envelope.body, len(carried.payload)):
            self._take_word(carried.device, edge, envelope, carried.payload, events)

    def _is_too_much(self, device: str, message: Message, size_bytes: int) -> bool:
        """Whether a device says more than it may; that is said once."""
        problem = self._limits.problem(device, message, size_bytes, edge=self._edges.is_edge(device))
        if problem is not None:
            self._waste(device, problem)
        return problem is not None

    def _waste(self, device: str, problem: str) -> None:
        """A message was not worth reading; a device that sends many of them is not read for a while."""
        self._limits.waste(device)
        self._warn(device, problem)

    def _take_word(
        self, device: str, edge: str | None, envelope: Envelope, payload: bytes, events: list[Heard | Pulled]
    ) -> None:
        """A report, an answer or the end of a connection, straight from a device or by way of an edge."""
        body = plain_words(envelope.body)
        if not isinstance(body, Word) or self.gate.bars(device):
            return
        self.gate.note(device, envelope.boot)
        is_edge = isinstance(body, Report) and (body.edge or body.stands_for > 0)
        if is_edge and (edge is not None or not self._edges.rights.is_enrolled(device)):
            self._waste(device, "it reports as an edge and was not enrolled as one; see `server enroll --edge`")
            return
        if isinstance(body, Report) and body.edge:
            self._edges.hear(device, envelope.boot)
            self._showing.back(device)
            self._send(device, Here())
        elif isinstance(body, Report):
            self._move(device, edge, envelope, events)
        elif isinstance(body, Gone):
            if edge is not None and self._edges.edge_of(device) != edge:
                return
            self._pulling.drop(device)
            if self._edges.is_alive(device, envelope.boot):
                self._showing.lose(device)
            events += [Heard(behind, boot, body) for behind, boot in self._edges.lose(device, envelope.boot)]
        elif isinstance(body, Update) and any(self.gate.bars(self._whose(part.task)) for part in body.parts):
            self._warn(device, "it put the change of a revoked device into its mean, which is not used")
            return
        elif edge is not None:
            self._note_place(body, edge)
        events.append(Heard(device, envelope.boot, body, payload))

    def _note_place(self, body: Word, edge: str) -> None:
        """What an edge carried the news of is to be fetched there."""
        ref = body.tensors if isinstance(body, Update) else body.masked if isinstance(body, SumAnswer) else None
        if ref is not None:
            self._pulling.lies_with(ref.sha256, edge)

    def _whose(self, task: str) -> str:
        """The device that a task went to by way of an edge."""
        return self._at[task][0] if task in self._at else ""

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

    def recall_all(self, device: str) -> None:
        """Tell edges not to count on the tasks of a device that is shut out or taken out."""
        for task, (whose, where) in self._at.items():
            if whose == device:
                self.recall(where, task)

    def _send_get(self, device: str, get: Get) -> None:
        self._publish(device, self._encode(get), reliable=False)

    def _send_chunk(self, device: str | None, message: Chunk | Lost | Located) -> None:
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
        self.order = self.order._replace(sequence=self.order.sequence + 1)
        return codec.encode(message, sender=SERVER, boot=self.boot, sign=self._sign, order=self.order)

    def _warn(self, device: str, problem: str) -> None:
        level = logging.DEBUG if device in self._warned or len(self._warned) >= MOST_WARNED else logging.WARNING
        if level == logging.WARNING:
            self._warned.add(device)
        log.log(level, "device %s: %s (further such messages are logged at debug level)", device, problem)
