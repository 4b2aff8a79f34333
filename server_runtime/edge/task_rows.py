"""An edge's tasks and answers: which pools are complete, what is due to go up, what may be forgotten."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from msgspec import structs

from fedwright.protocol.blobs import BlobStore, inlined
from fedwright.protocol.errors import BadBlob, BadUpdate
from fedwright.protocol.messages import BlobRef, Pool, Refusal, Shown, Task, Update
from fedwright.protocol.task_blobs import blobs_of, own_blobs
from fedwright.server_runtime.edge.cluster_sharing import ClusterSharing
from fedwright.server_runtime.edge.pooled_update import Grouping, PooledReply, Reader, split
from fedwright.server_runtime.edge.store import ALONE, EdgeStore, State, TaskRow
from fedwright.server_runtime.fleet.upload_limits import most_bytes

log = logging.getLogger(__name__)

# An answer is repeated after this long without an acknowledgement.
RESEND_S = 5.0
# A pool goes up with those who answered when this share of its time has passed, so that the host still gets it.
PATIENCE_RATIO = 0.8
# Other edges may have waited that long before they show their clusters; so long they are waited for.
PEERS_RATIO = 0.9
# When this edge last showed its clusters; no task has this name.
SHOWN = "the clusters"
# Tasks of asynchronous rounds may be this much older than the newest.
KEEP_ROUNDS = 20


class TaskRows:
    """Rows of the store and what follows from them; knows nothing of links."""

    def __init__(
        self, edge: str, store: EdgeStore, blobs: BlobStore, *, grouping: Grouping, clock: Callable[[], float]
    ) -> None:
        self.sharing = ClusterSharing(edge, store, blobs)
        self._store = store
        self._blobs = blobs
        self._grouping = grouping
        self._clock = clock
        self._reader = Reader(blobs)
        self._began_s = {row.id: clock() for row in store.rows()}
        self._sent_s: dict[str, float] = {}
        # The stage and tasks of which this life of the edge has shown its clusters to others, and waits for theirs.
        self._shown: tuple[str, set[str]] | None = None

    def open_rows(self, device: str | None = None) -> list[TaskRow]:
        """Tasks that are not answered, of one device or of all."""
        return [row for row in self._store.rows() if row.state == "open" and device in (None, row.device)]

    def states(self) -> Counter[str]:
        """How many tasks there are of each state."""
        return Counter(row.state for row in self._store.rows())

    def row(self, task: str) -> TaskRow | None:
        """The row of a task."""
        return self._store.row(task)

    def take_task(self, device: str, task: Task, payload: bytes) -> TaskRow:
        """Make a task durable; one that was recalled counts again, one that is answered is due at once."""
        known = self._store.row(task.task)
        if known is None:
            self._forget_before(task)
        row = TaskRow(task.task, device, payload) if known is None else replace(known, payload=payload)
        if row.state == "recalled":
            row = replace(row, state="open")
        if row != known:
            self._store.save(row)
        self._began_s.setdefault(row.id, self._clock())
        self._sent_s.pop(row.id if row.bundle in ("", ALONE) else row.bundle, None)
        return row

    def is_too_large(self, update: Update) -> bool:
        """Whether an update's blob is more than its task can need, so that the host would not take it either."""
        row = self._store.row(update.task)
        if row is None or row.task is None or update.tensors is None or not self._blobs.has(row.task.artifact.sha256):
            return False
        return update.tensors.size_bytes > most_bytes(self._reader.manifest(row.task), row.task.returns)

    def give_up(self, device: str, task: str) -> list[str]:
        """A device that gets a task gives up what it has in hand: nobody waits for that any longer."""
        over = [row for row in self.open_rows(device) if row.id != task]
        if over:
            self._store.save(*(replace(row, state="recalled") for row in over))
        return [row.id for row in over]

    def take_answer(self, device: str, answer: Update | Refusal, payload: bytes) -> TaskRow | None:
        """Make an answer durable; None when it is not this device's to give."""
        row = self._store.row(answer.task) or TaskRow(answer.task, device, None)
        if row.device != device or (isinstance(answer, Update) and answer.parts):
            log.warning("device %s answers what it was not asked; that is not taken", device)
            return None
        if row.state in ("open", "recalled"):
            state: State = "refused" if isinstance(answer, Refusal) else "answered"
            alone = row.state == "recalled" or row.payload is None
            row = replace(row, answer=payload, state=state, bundle=ALONE if alone else "")
            self._store.save(row)
            self._began_s.setdefault(row.id, self._clock())
        return row

    def take_ack(self, task: str, payload: bytes) -> list[str]:
        """The host has an answer: keep its word for a device that asks again; returns blobs that nobody needs now."""
        row = self._store.row(task)
        if row is None or row.state == "done":
            return []
        self._store.save(replace(row, answer=payload, state="done"))
        spent: list[BlobRef | None] = [] if row.task is None else [*own_blobs(row.task)]
        spent.append(row.reply.tensors if isinstance(row.reply, Update) else None)
        update = self._store.bundle(row.bundle)
        if update is not None and all(self._is_done(part.task) for part in update.parts):
            spent.append(update.tensors)
            self._store.drop_bundle(row.bundle)
        return self._unneeded(spent)

    def recall(self, task: str) -> None:
        """Do not count on a task; what it was put together with is put together anew, and it goes up by itself."""
        row = self._store.row(task)
        if row is None or row.state == "done":
            return
        mine = replace(row, state="recalled") if row.answer is None else replace(row, bundle=ALONE)
        if self._store.bundle(row.bundle) is None:
            self._store.save(mine)
            return
        others = [r for r in self._store.rows() if r.bundle == row.bundle and r.id != task and r.state != "done"]
        self._sent_s.pop(row.bundle, None)
        self._store.drop_bundle(row.bundle, mine, *(replace(other, bundle="") for other in others))

    def link_lost(self) -> None:
        """Everything that is not acknowledged is due again."""
        self._sent_s.clear()

    def close_pools(self) -> None:
        """Put together what is complete or has waited long enough."""
        waiting: dict[str, list[TaskRow]] = {}
        ripe: dict[str, list[TaskRow]] = {}
        pools = self._pools()
        for key, rows in pools.items():
            left = [row for row in rows if not row.bundle and row.state in ("answered", "open")]
            late = bool(left) and self._is_late(left, PATIENCE_RATIO)
            if any(row.state == "answered" for row in left) and (late or self._is_settled(rows, left)):
                ripe[key] = left
            elif left and not late:
                waiting[key] = left
        if not self._grouping.together or not (ripe or waiting):
            self._show_nothing(pools)
        if ripe and not (self._grouping.together and (waiting or self._waits_for_others(ripe))):
            self._put_together({key: self._members(rows) for key, rows in ripe.items()})

    def _put_together(self, members: dict[str, list[PooledReply]]) -> None:
        alone, pooled = split(members, self._grouping)
        for member in alone:
            self._send_alone(member.task.task)
        elsewhere = self._elsewhere(pooled)
        if not pooled or elsewhere is None:
            return
        updates = self._grouping.group(pooled, self._reader, elsewhere)
        self._store.save_bundles(updates)
        self._shown = None
        for update in updates:
            log.info("round %d: %d updates go up as one", update.round, len(update.parts))

    def _elsewhere(self, pooled: dict[str, list[PooledReply]]) -> dict[str, bytes] | None:
        """What other edges show, once this one has shown its own; None while some are waited for."""
        members = [member for found in pooled.values() for member in found]
        pool = _newest([member.task for member in members])
        if not self._grouping.together or pool is None or pool.stage is None:
            return {}
        shown = (pool.stage, {member.task.task for member in members})
        if self._shown != shown:
            self._show(pool.stage, self._grouping.show(pooled, self._reader))
            self._shown = shown
            if self.sharing.missing(pool.stage, pool.peers):
                return None
        return self.sharing.views(pool.stage, pool.peers)

    def _waits_for_others(self, ripe: dict[str, list[TaskRow]]) -> bool:
        """Whether these have been shown and others have not answered that yet, with time left for them to do it."""
        rows = [row for found in ripe.values() for row in found if row.state == "answered"]
        pool = _newest([row.task for row in rows if row.task is not None])
        if pool is None or pool.stage is None or self._shown != (pool.stage, {row.id for row in rows}):
            return False
        return bool(self.sharing.missing(pool.stage, pool.peers)) and not self._is_late(rows, PEERS_RATIO)

    def _show_nothing(self, pools: dict[str, list[TaskRow]]) -> None:
        """Let other edges not wait for this one, which has no clusters for them in this stage."""
        pool = _newest([row.task for rows in pools.values() for row in rows if row.task is not None])
        if pool is not None and pool.stage is not None and self.sharing.stage != pool.stage:
            self._show(pool.stage, None)

    def _show(self, stage: str, views: bytes | None) -> None:
        self.sharing.show(stage, views)
        self.show_again()

    def show_again(self) -> None:
        """What this edge shows is due: nobody may have it."""
        self._sent_s.pop(SHOWN, None)

    def due_shown(self) -> list[Shown]:
        """What to show to other edges now; it is repeated as long as one of them is waited for."""
        is_known = SHOWN in self._sent_s and self._shown is None
        if is_known or self.sharing.stage is None or not self._is_due(SHOWN):
            return []
        shown = self.sharing.own()
        return [] if shown is None else [shown]

    def due_updates(self) -> list[Update]:
        """Pooled updates to send now."""
        return [
            update if update.tensors is None else replace_tensors(update, inlined(self._blobs, update.tensors))
            for name, update in self._store.bundles().items()
            if self._is_due(name)
        ]

    def due_answers(self) -> list[TaskRow]:
        """Answers to send now as they came: refusals, and updates of no pool."""
        return [row for row in self._store.rows() if self._goes_alone(row) and self._is_due(row.id)]

    def _pools(self) -> dict[str, list[TaskRow]]:
        pools: dict[str, list[TaskRow]] = {}
        for row in self._store.rows():
            if row.task is not None and row.task.pool is not None:
                pools.setdefault(row.task.pool.key, []).append(row)
        return pools

    def _is_settled(self, rows: list[TaskRow], left: list[TaskRow]) -> bool:
        """Whether all tasks of a pool are here and none of them is waited for."""
        pool = None if rows[0].task is None else rows[0].task.pool
        return pool is not None and len(rows) >= pool.size and all(row.state != "open" for row in left)

    def _is_late(self, left: list[TaskRow], ratio: float) -> bool:
        """Whether this share of the time of these tasks has passed."""
        task = left[0].task
        began_s = min(self._began_s[row.id] for row in left)
        return task is not None and self._clock() - began_s >= ratio * task.deadline_s

    def _members(self, rows: list[TaskRow]) -> list[PooledReply]:
        """The usable answers among rows; one that cannot be read goes up by itself, for the host to judge."""
        found = []
        for row in rows:
            if row.state != "answered" or row.task is None or not isinstance(row.reply, Update):
                continue
            try:
                self._reader.read(row.task, row.reply)
            except (BadUpdate, BadBlob) as err:
                log.warning("device %s: %s; the host decides", row.device, err)
                self._send_alone(row.id)
                continue
            found.append(PooledReply(row.device, row.task, row.reply))
        return found

    def _send_alone(self, task: str) -> None:
        row = self._store.row(task)
        if row is not None:
            self._store.save(replace(row, bundle=ALONE))

    def _goes_alone(self, row: TaskRow) -> bool:
        if row.state == "refused" or (row.state == "answered" and row.bundle == ALONE):
            return True
        return row.state == "answered" and not row.bundle and (row.task is None or row.task.pool is None)

    def _is_due(self, name: str) -> bool:
        now_s = self._clock()
        if now_s - self._sent_s.get(name, now_s - RESEND_S) < RESEND_S:
            return False
        self._sent_s[name] = now_s
        return True

    def _is_done(self, task: str) -> bool:
        row = self._store.row(task)
        return row is None or row.state == "done"

    def _unneeded(self, spent: Iterable[BlobRef | None]) -> list[str]:
        """Of these blobs, those that no task under way and no pooled update needs."""
        needed: list[BlobRef | None] = [update.tensors for update in self._store.bundles().values()]
        for row in self._store.rows():
            if row.state != "done":
                needed += [] if row.task is None else blobs_of(row.task)
                needed.append(row.reply.tensors if isinstance(row.reply, Update) else None)
        names = {ref.sha256 for ref in needed if ref is not None}
        return sorted({ref.sha256 for ref in spent if ref is not None} - names)

    def _forget_before(self, task: Task) -> None:
        """Rows of rounds that are over when a new one begins, and all of another run: its host is gone."""
        old = []
        for row in self._store.rows():
            over = row.state in ("done", "recalled")
            if row.task is None:
                behind = 1
            elif row.task.run_key == task.run_key:
                behind = task.round - row.task.round
            else:
                behind = KEEP_ROUNDS + 1
                if self._store.bundle(row.bundle) is not None:
                    self._store.drop_bundle(row.bundle)
            if behind > (0 if over else KEEP_ROUNDS):
                old.append(row.id)
        self._store.remove(old)


def _newest(tasks: Sequence[Task]) -> Pool | None:
    """The pool of the newest of some tasks."""
    return max(tasks, key=lambda task: task.round).pool if tasks else None


def replace_tensors(update: Update, ref: BlobRef) -> Update:
    """The update with another description of the same blob."""
    return structs.replace(update, tensors=ref)
