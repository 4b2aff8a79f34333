"""Speaks with the devices: tasks until acknowledged, blobs on request, uploads pulled a few at a time."""

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from msgspec import structs

from fedwright.protocol import codec, topics
from fedwright.protocol.blobs import BlobStore, Download, Uploads, inlined
from fedwright.protocol.errors import BadBlob, BadMessage
from fedwright.protocol.link.base import Link, Received
from fedwright.protocol.messages import (
    Ack,
    BlobRef,
    Challenge,
    Chunk,
    Dismiss,
    Get,
    Gone,
    Lost,
    Message,
    Refusal,
    Report,
    Task,
    Update,
)
from fedwright.server_runtime.rounds.serving import Serving

log = logging.getLogger(__name__)

SERVER = "server"
# A device acknowledges a task as soon as it is in its journal; silence this long means it was not heard.
RESEND_S = 5.0
# Uploads pulled at the same time: enough to fill a link, few enough that the broker and the disk stay calm.
MAX_PULLS = 8
MAX_PULL_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True)
class Heard:
    """A device said something that the coordinator decides on."""

    device: str
    boot: str
    message: Report | Update | Refusal | Gone


@dataclass(frozen=True)
class Pulled:
    """A blob that was asked for is complete in the store, or (`problem`) cannot be had."""

    device: str
    sha256: str
    problem: str = ""


@dataclass
class _Outgoing:
    device: str
    boot: str
    task: Task
    sent_s: float


@dataclass
class _Pull:
    device: str
    download: Download


class Exchange:
    """The server's half of the protocol; single-threaded, driven by `poll`."""

    def __init__(
        self,
        link: Link,
        fleet: str,
        *,
        blobs: BlobStore,
        sign: codec.Sign | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.boot = codec.new_id()
        self._link = link
        self._fleet = fleet
        self._blobs = blobs
        self._sign = sign
        self._uploads = Uploads(blobs)
        self._serving = Serving(self._uploads, self._send_chunk, clock=clock)
        self._clock = clock
        self._connects = link.connects
        self._outgoing: dict[str, _Outgoing] = {}
        self._pulls: dict[str, _Pull] = {}
        self._waiting: deque[tuple[str, BlobRef]] = deque()
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
        for ref in (task.artifact, task.weights, task.sides, task.frozen, task.public):
            if ref is not None:
                self._uploads.serve(ref)
        for common in (task.artifact, task.frozen, task.public):
            if common is not None:
                self._serving.offer_common(common.sha256)
        # The artifact is never inline: a device that has it in its cache need not get it again.
        task = structs.replace(task, boot=boot, weights=inlined(self._blobs, task.weights))
        self._outgoing[task.task] = _Outgoing(device, boot, task, self._clock())
        self._send(device, task)

    def withdraw(self, task: str) -> None:
        """Stop sending a task."""
        self._outgoing.pop(task, None)

    def acknowledge(self, device: str, task: str, *, problem: str = "") -> None:
        """Tell a device that its update or refusal is durable here (or was not used, and why)."""
        self._send(device, Ack(task, problem))

    def dismiss(self, device: str, dismissal: Dismiss) -> None:
        """Tell a device to leave."""
        self._send(device, dismissal)

    def pull(self, device: str, ref: BlobRef) -> None:
        """Fetch a blob from a device; a Pulled event tells when it is here."""
        if ref.sha256 not in self._pulls and all(waiting.sha256 != ref.sha256 for _, waiting in self._waiting):
            self._waiting.append((device, ref))

    def poll(self, timeout_s: float) -> list[Heard | Pulled]:
        """Do what is due, then wait for messages at most this long and return what the coordinator must know."""
        events: list[Heard | Pulled] = []
        self._admit_pulls(events)
        self._tend()
        due_s = self._serving.due_s()
        received = self._link.receive(0.0 if events else timeout_s if due_s is None else min(timeout_s, due_s))
        while received is not None:
            self._take(received, events)
            received = self._link.receive(0.0) if len(events) < 64 else None
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
                self._send(outgoing.device, outgoing.task)
        for sha256, pull in self._pulls.items():
            self._ask(sha256, pull)

    def _admit_pulls(self, events: list[Heard | Pulled]) -> None:
        while self._waiting and self._has_room(self._waiting[0][1]):
            device, ref = self._waiting.popleft()
            try:
                pull = _Pull(device, Download(self._blobs, ref))
                if pull.download.done:
                    pull.download.finish()
                    events.append(Pulled(device, ref.sha256))
                    continue
            except BadBlob as err:
                events.append(Pulled(device, ref.sha256, str(err)))
                continue
            self._pulls[ref.sha256] = pull

    def _has_room(self, ref: BlobRef) -> bool:
        """Whether another upload may start; one alone always may."""
        under_way = sum(pull.download.ref.size_bytes for pull in self._pulls.values())
        return not self._pulls or (len(self._pulls) < MAX_PULLS and under_way + ref.size_bytes <= MAX_PULL_BYTES)

    def _ask(self, sha256: str, pull: _Pull) -> None:
        wanted = pull.download.wanted(self._clock())
        if wanted:
            self._send(pull.device, Get(sha256, wanted), reliable=False)

    def _take(self, received: Received, events: list[Heard | Pulled]) -> None:
        device = topics.device_of(received.topic)
        try:
            envelope = codec.decode(received.payload)
        except BadMessage as err:
            self._warn(device, str(err))
            return
        if envelope.sender != device:
            self._warn(device, f"message claims to be from {envelope.sender}")
            return
        body = envelope.body
        if isinstance(body, Report | Update | Refusal | Gone):
            events.append(Heard(device, envelope.boot, body))
        elif isinstance(body, Ack):
            self._outgoing.pop(body.of, None)
        elif isinstance(body, Get):
            self._serving.request(device, body)
        elif isinstance(body, Chunk):
            self._take_chunk(device, body, events)
        elif isinstance(body, Lost) and self._pulled_from(device, body.sha256) is not None:
            del self._pulls[body.sha256]
            events.append(Pulled(device, body.sha256, "the device no longer holds the blob it announced"))

    def _take_chunk(self, device: str, chunk: Chunk, events: list[Heard | Pulled]) -> None:
        pull = self._pulled_from(device, chunk.sha256)
        if pull is None:
            return
        pull.download.accept(chunk.index, chunk.data)
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
        self._link.send(topic, self._encode(message), reliable=False)

    def _send(self, device: str, message: Message, *, reliable: bool = True) -> None:
        self._link.send(topics.down(self._fleet, device), self._encode(message), reliable=reliable)

    def _encode(self, message: Message) -> bytes:
        return codec.encode(message, sender=SERVER, boot=self.boot, sign=self._sign)

    def _warn(self, device: str, problem: str) -> None:
        level = logging.DEBUG if device in self._warned else logging.WARNING
        self._warned.add(device)
        log.log(level, "device %s: %s (further such messages are logged at debug level)", device, problem)
