"""Puts the sum of a group's changes in the place of the changes, which stay with their devices.

A group's sum is one mean with the weight of all who are in it, as an edge's pool is; a method absorbs it alike.
"""

import logging
import math
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import structs

from fedwright.protocol import tensors
from fedwright.protocol.artifact import BY_CLASS, CLASS_COUNTS, CLASS_MEANS, returned_shapes
from fedwright.protocol.blobs import make_ref
from fedwright.protocol.errors import ProtocolError
from fedwright.protocol.messages import Part, SumAsk, SumTerms
from fedwright.protocol.secure.class_means import pooled_means
from fedwright.protocol.secure.masks import WORD_BYTES, Words, scale_of, to_mean
from fedwright.protocol.secure.noisy_words import noisy_scale
from fedwright.server_runtime.methods.base import Tensors
from fedwright.server_runtime.rounds import events
from fedwright.server_runtime.rounds.planner import Planner
from fedwright.server_runtime.rounds.secure.groups import Group, waiting_groups
from fedwright.server_runtime.rounds.secure.options import SecureOptions
from fedwright.server_runtime.rounds.secure.record import SumRecord, pack_record, read_record
from fedwright.server_runtime.rounds.secure.session import SumSession, TooFew, new_record, without
from fedwright.server_runtime.rounds.secure.talk import StageTalk
from fedwright.server_runtime.rounds.store.base import Planned, Position, Reply, RoundStore
from fedwright.server_runtime.rounds.task_tracker import TaskTracker

log = logging.getLogger(__name__)

# How often a sum is begun before its devices train anew or are left out.
ATTEMPTS = 3


class SumAdder:
    """Adds up what waits in a stage, group by group; each is durable before the next begins."""

    def __init__(
        self, tracker: TaskTracker, planner: Planner, store: RoundStore, *, options: SecureOptions, deadline_s: float
    ) -> None:
        self._tracker = tracker
        self._planner = planner
        self._store = store
        self._options = options
        self._deadline_s = deadline_s

    def add_up(self, position: Position, plan: Sequence[Planned]) -> list[Group]:
        """Give every group of a stage its sum, or say in the replies of its devices why it has none.

        Returns the groups whose sum is no sum of changes.
        """
        groups = waiting_groups(plan, self._store.replies(position))
        return [group for group in groups if not self._add_group(position, group)]

    def _add_group(self, position: Position, group: Group) -> bool:
        """False when what came out is no sum of changes."""
        kept = self._store.sum(group.name)
        record = new_record(group.tasks()) if kept is None else read_record(kept)
        length = sum(math.prod(shape) for shape in self._shapes(group).values())
        talk = StageTalk(self._tracker, self._planner.blobs, self._deadline_s, WORD_BYTES * length)
        out: dict[str, str] = {}
        for attempt in range(1, ATTEMPTS + 1):
            session = SumSession(
                talk,
                self._planner.blobs,
                lambda made: self._store.save_sum(group.name, pack_record(made)),
                self._options.least,
                self._options.authority,
                neighbours=self._options.neighbours,
                threshold=self._options.threshold,
            )
            try:
                total, record = session.run(record)
                out |= {d: why for d, why in session.problems.items() if d not in record.parts}
                self._warn(position, session.problems)
                self._finish(position, group, record, total, out)
                return True
            except TooFew as err:
                out |= session.problems
                self._warn(position, session.problems)
                reason, masked = str(err), err.masked
            except ProtocolError as err:
                self._warn(position, session.problems)
                self._reject(position, group, record, str(err))
                return False
            tasks = without(record.tasks, list(session.problems))
            if masked or attempt == ATTEMPTS or len(tasks) < self._options.least:
                self._give_up(position, group, out, reason)
                return True
            record = new_record(tasks)
        return True

    def _finish(
        self, position: Position, group: Group, record: SumRecord, total: Words, out: Mapping[str, str]
    ) -> None:
        """Make the sum durable in place of the changes, then let devices and disks forget them."""
        present, terms = record.present, group.terms
        updates = {d: group.replies[d].update for d in present}
        weight = sum(terms.weight(u.stats.samples) for u in updates.values() if u is not None)
        mean = to_mean(
            total, weight / terms.largest_weight, devices=len(record.members), scale=_scale(terms, record, len(total))
        )
        samples = sum(u.stats.samples for u in updates.values() if u is not None)
        data = tensors.save(_with_means(self._split(mean, group), samples))
        blobs = self._planner.blobs
        blobs.put_bytes(data)
        ref = make_ref(data, chunk_bytes=self._planner.chunk_bytes, inline=False)
        parts = [Part(u.task, u.stats) for u in updates.values() if u is not None]
        replies = []
        for place, update in enumerate(updates.values()):
            assert update is not None
            whole = structs.replace(update, tensors=ref, parts=parts) if place == 0 else update
            replies.append(Reply(update.task, "update", update=whole))
        left = sorted(group.planned.keys() - set(present))
        replies += [_late(group, device, out.get(device, "it is not in the sum")) for device in left]
        self._store.end_sum(group.name, replies)
        for device in left:
            self._failed(position, device, out.get(device, "it is not in the sum"))
        self._clean_up(group, record)

    def _give_up(self, position: Position, group: Group, out: Mapping[str, str], reason: str) -> None:
        """Nothing of this sum is known, and nothing of it counts."""
        detail = f"no sum came about: {reason}"
        self._store.end_sum(group.name, [_late(group, device, out.get(device, detail)) for device in group.planned])
        for device in sorted(group.planned):
            self._failed(position, device, out.get(device, detail))
        self._clean_up(group, None)

    def _reject(self, position: Position, group: Group, record: SumRecord, reason: str) -> None:
        """A sum that is no sum of changes: one of its devices sent something else, and nobody can tell which."""
        names = ", ".join(record.present)
        detail = f"the sum of {names} cannot be used: {reason}"
        replies = [Reply(planned.task.task, "rejected", detail=detail) for planned in group.planned.values()]
        self._store.end_sum(group.name, replies)
        for device in sorted(group.planned):
            self._failed(position, device, detail, outcome="rejected")
        self._clean_up(group, record)

    def _clean_up(self, group: Group, record: SumRecord | None) -> None:
        for device, planned in group.planned.items():
            self._tracker.questions.ask(device, SumAsk("done", "unsent", "done", planned.task.task))
        for ref in () if record is None else record.parts.values():
            self._planner.blobs.remove(ref.sha256)

    def _warn(self, position: Position, problems: Mapping[str, str]) -> None:
        for device, why in sorted(problems.items()):
            text = f"round {position.round}, in a sum: {why}"
            self._tracker.observe(events.Warned(text, device, "refused in a sum"))

    def _failed(self, position: Position, device: str, detail: str, outcome: str = "late") -> None:
        self._tracker.observe(events.TaskFailed(position.round, device, detail, outcome=outcome))

    def _shapes(self, group: Group) -> dict[str, tuple[int, ...]]:
        first = next(iter(group.planned.values()))
        return returned_shapes(self._planner.manifest(first.assignment.structure), first.task.returns)

    def _split(self, mean: np.ndarray, group: Group) -> Tensors:
        """The mean change tensor by tensor; whole numbers stay such."""
        first = next(iter(group.planned.values()))
        dtypes = {slot.name: slot.dtype for slot in self._planner.manifest(first.assignment.structure).slots}
        found, start = {}, 0
        for name, shape in sorted(self._shapes(group).items()):
            values = mean[start : start + math.prod(shape)].reshape(shape)
            start += math.prod(shape)
            dtype = np.dtype(dtypes.get(name, "float32"))
            found[name] = (np.rint(values) if dtype.kind in "iu" else values).astype(dtype)
        return found


def _with_means(found: Tensors, samples: int) -> Tensors:
    """Class means as a device would send them."""
    if CLASS_MEANS not in found:
        return found
    pooled = pooled_means(found[CLASS_MEANS], found[CLASS_COUNTS], samples)
    return found | dict(zip(BY_CLASS, pooled, strict=True))


def _scale(terms: SumTerms, record: SumRecord, entries: int) -> float:
    """Whole numbers for a change of 1, as its members have made them."""
    members = len(record.members)
    if terms.noise_multiplier is None or terms.clip_norm is None:
        return scale_of(members, terms.reach)
    return noisy_scale(members, entries, clip=terms.clip_norm, multiplier=terms.noise_multiplier).scale


def _late(group: Group, device: str, detail: str) -> Reply:
    return Reply(group.planned[device].task.task, "late", detail=f"{device}: {detail}")
