"""An edge server: between the host and its devices, with a store of its own.

The path of one round with edges:

1. A device reports to its edge as to any server. The edge carries the report to the host, byte for byte; the host
   plans for every device, as it does without edges.
2. Tasks that differ in nothing but the device are one pool at their edge (`rounds/pooled_tasks.py`). The host signs
   each task and sends it to the edge, which makes it durable, acknowledges it, fetches the blobs once, and passes the
   signed bytes on: a device obeys the host alone, an edge cannot forge an order and has no key to sign one.
3. A device fetches from its edge, trains and answers. The edge fetches the update, makes it durable and says `held`,
   so that the device stops repeating itself; the device keeps its answer until the host's own signed acknowledgement.
4. When all tasks of a pool have been answered (or most of its time has passed) the edge puts the updates together:
   one mean with the weight of all, one blob to the host. With `[cluster]` there is one mean per cluster; with
   `[exchange]` linked clusters of different size teach each other's last layers first, also those behind different
   edges: each edge shows its own to the others through the host and waits for theirs (`cluster_sharing.py`). An update
   that belongs to no pool, of a method that needs each by itself, goes up as it came.
5. The host makes the pooled update durable for all its tasks in one act and acknowledges each; the edge passes that
   on and forgets.

What a kill does: an edge that comes back goes on from its store. Devices whose edge stays silent go to the next edge
of their list with the answer they still hold; the host then recalls the task from the edge they left. The host takes
every task's update once: a pooled one with a task that is closed already is sent back, and put together without it.
While the host is away the edge collects, keeps and repeats.
"""

import logging
import time

from fedwright.protocol import codec
from fedwright.protocol.blobs import BlobStore
from fedwright.protocol.errors import BadMessage
from fedwright.protocol.messages import (
    Ack,
    Carried,
    Challenge,
    Chunk,
    Dismiss,
    Gone,
    Lost,
    Message,
    Recall,
    Refusal,
    Report,
    Shown,
    Status,
    SumAnswer,
    Task,
    Update,
)
from fedwright.protocol.task_blobs import blobs_of
from fedwright.server_runtime.edge.base import TICK_S, BaseEdge, EdgeOptions
from fedwright.server_runtime.edge.host_channel import HostChannel
from fedwright.server_runtime.edge.metrics import EdgeSnapshot
from fedwright.server_runtime.edge.store import TaskRow
from fedwright.server_runtime.edge.task_rows import TaskRows
from fedwright.server_runtime.transport.device_channel import DeviceChannel, Heard
from fedwright.server_runtime.transport.upload_puller import Pulled

log = logging.getLogger(__name__)

# Numbers of 250 million parameters; the host asks for no more.
MOST_MASKED_BYTES = 1_000_000_000


class Edge(BaseEdge):
    """One edge server; `run` returns when the host's run is over (with `once`) or `stop` was called."""

    def __init__(
        self,
        up: HostChannel,
        down: DeviceChannel,
        *,
        rows: TaskRows,
        blobs: BlobStore,
        options: EdgeOptions | None = None,
    ) -> None:
        super().__init__(up, options or EdgeOptions())
        self._down = down
        self._rows = rows
        self._blobs = blobs
        # The last report of each device that is here, as it came, and the boot that made it.
        self._reports: dict[str, tuple[str, bytes]] = {}
        self._arriving: dict[str, list[Heard]] = {}
        # Tasks that went to their device in this life of the edge.
        self._passed: set[str] = set()
        # Of each device the masked numbers that the host may fetch here.
        self._masked: dict[str, str] = {}
        # The blob that other edges may see.
        self._showing = ""

    def snapshot(self) -> EdgeSnapshot:
        """How the edge does now; safe from any thread."""
        return EdgeSnapshot(len(self._reports), self._rows.states(), self._heard_s)

    def run(self) -> None:
        """Serve; LinkError when no host was ever heard of, IdentityTaken when another edge has this name."""
        for task in [row.task for row in self._rows.open_rows() if row.task is not None]:
            # A device may be in the middle of fetching them, and must not hear that they are lost.
            if all(self._blobs.has(ref.sha256) for ref in blobs_of(task)):
                self._down.offer(task)
        while not self._stopping.is_set() and not self._over:
            for event in self._down.poll(TICK_S):
                if isinstance(event, Pulled):
                    self._take_pulled(event)
                else:
                    self._take_word(event)
            for message in self._up.poll():
                self._take_order(message)
            self._tend()

    def _tend(self) -> None:
        if self._up.came_up():
            self._report_all()
            self._rows.link_lost()
        if self._is_beat_due():
            self._down.say_here()
        self._check_host()
        self._up.fetch(self._rows.sharing.wanted())
        self._up.tend()
        self._rows.close_pools()
        for shown in self._rows.due_shown():
            self._show(shown)
        for update in self._rows.due_updates():
            self._announce(update)
            self._up.send(update)
        for row in self._rows.due_answers():
            self._announce(row.reply)
            self._up.carry(row.device, row.answer or b"")

    def _announce(self, answer: Update | Refusal | None) -> None:
        """Let the host fetch what an answer names."""
        if isinstance(answer, Update) and answer.tensors is not None:
            self._up.serve(answer.tensors)

    def _show(self, shown: Shown) -> None:
        """Let the host fetch what this edge shows to others, and nothing that it showed before."""
        name = "" if shown.clusters is None else shown.clusters.sha256
        if self._showing not in ("", name):
            self._up.stop_serving(self._showing)
        self._showing = name
        if shown.clusters is not None:
            self._up.serve(shown.clusters)
        self._up.send(shown)

    def _take_order(self, message: Message) -> None:
        """Something from the host."""
        self._host_heard, self._heard_s = True, time.time()
        if isinstance(message, Carried):
            self._take_carried(message)
        elif isinstance(message, Challenge):
            self._report_all()
            self._rows.show_again()
        elif isinstance(message, Shown):
            self._rows.sharing.take(message)
        elif isinstance(message, Recall):
            self._down.withdraw(message.of)
            self._rows.recall(message.of)
        elif isinstance(message, Chunk):
            # The last one of its blob: a task may have waited for it.
            for row in self._rows.open_rows():
                if row.id not in self._passed:
                    self._begin(row)
        elif isinstance(message, Lost):
            log.warning("the host no longer holds blob %s; it has moved on", message.sha256[:12])
        elif isinstance(message, Dismiss):
            self._take_dismiss(message)

    def _report_all(self) -> None:
        """Say who is here, this edge and the devices behind it: the host may have missed us."""
        self._up.report()
        for device, (_, payload) in sorted(self._reports.items()):
            self._up.carry(device, payload)

    def _take_carried(self, carried: Carried) -> None:
        """The host's word for a device: a task is made durable and acknowledged first, all else passes through."""
        try:
            body = codec.decode(carried.payload).body
        except BadMessage as err:
            log.warning("from the host for %s: %s", carried.device, err)
            return
        if isinstance(body, Task):
            for over in self._rows.give_up(carried.device, body.task):
                self._down.withdraw(over)
            row = self._rows.take_task(carried.device, body, carried.payload)
            self._up.send(Ack(body.task))
            self._begin(row)
            return
        self._down.send_bytes(carried.device, carried.payload)
        if isinstance(body, Ack):
            self._down.withdraw(body.of)
            self._passed.discard(body.of)
            for sha256 in self._rows.take_ack(body.of, carried.payload):
                self._down.stop_serving(sha256)
                self._up.stop_serving(sha256)
                self._blobs.remove(sha256)

    def _begin(self, row: TaskRow) -> None:
        """Pass a task on to the boot it is for, as soon as its blobs are here."""
        boot, _ = self._reports.get(row.device, ("", b""))
        if row.state != "open" or row.task is None or not row.payload or row.task.boot != boot:
            return
        if self._up.fetch(blobs_of(row.task)):
            self._passed.add(row.id)
            self._down.pass_on(row.device, row.task, row.payload)

    def _take_word(self, event: Heard) -> None:
        """Something from a device."""
        device, message = event.device, event.message
        if isinstance(message, Report):
            self._reports[device] = (event.boot, event.payload)
            self._up.carry(device, event.payload)
            for row in self._rows.open_rows(device):
                self._begin(row)
        elif isinstance(message, Gone):
            if self._reports.get(device, ("", b""))[0] == event.boot:
                del self._reports[device]
            self._up.carry(device, event.payload)
        elif isinstance(message, Status):
            self._up.carry(device, event.payload)
        elif isinstance(message, SumAnswer):
            self._take_sum_answer(event, message)
        elif isinstance(message, Update) and message.tensors is not None and self._is_wanted(message):
            self._arriving.setdefault(message.tensors.sha256, []).append(event)
            self._down.pull(device, message.tensors)
        else:
            self._take_answer(event)

    def _is_wanted(self, update: Update) -> bool:
        """Whether to fetch an update's tensors; those of one that the host will turn down stay where they are."""
        row = self._rows.row(update.task)
        return (row is None or row.answer is None) and not self._rows.is_too_large(update)

    def _take_pulled(self, event: Pulled) -> None:
        for heard in self._arriving.pop(event.sha256, []):
            if event.problem:
                log.warning("device %s: %s", heard.device, event.problem)
            elif isinstance(heard.message, SumAnswer):
                self._pass_masked(heard, heard.message)
            else:
                self._take_answer(heard)

    def _take_sum_answer(self, event: Heard, answer: SumAnswer) -> None:
        """Carry a device's word in a sum; masked numbers that are no part of it are fetched first."""
        ref = answer.masked
        if ref is None or ref.inline is not None or ref.size_bytes > MOST_MASKED_BYTES:
            # The host turns down what is too large.
            self._up.carry(event.device, event.payload)
        elif self._blobs.has(ref.sha256):
            self._pass_masked(event, answer)
        else:
            self._arriving.setdefault(ref.sha256, []).append(event)
            self._down.pull(event.device, ref)

    def _pass_masked(self, event: Heard, answer: SumAnswer) -> None:
        """Let the host fetch masked numbers here; those that the device sent before are no longer needed."""
        ref, before = answer.masked, self._masked.get(event.device, "")
        if ref is None:
            return
        if before not in ("", ref.sha256):
            self._up.stop_serving(before)
            self._blobs.remove(before)
        self._masked[event.device] = ref.sha256
        self._up.serve(ref)
        self._up.carry(event.device, event.payload)

    def _take_answer(self, event: Heard) -> None:
        """Make an answer durable, then tell the device; one that the host has acknowledged gets that word again."""
        if not isinstance(event.message, Update | Refusal):
            return
        task = event.message.task
        row = self._rows.take_answer(event.device, event.message, event.payload)
        self._down.withdraw(task)
        if row is not None and row.state == "done":
            self._down.send_bytes(event.device, row.answer or b"")
        elif row is not None:
            self._down.say_held(event.device, task)
