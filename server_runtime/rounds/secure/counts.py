"""Adds up counts that the server may not see, and asks every device how unlike the sum its own are.

The sum is led as that of changes is, and is as durable: a server that is killed goes on with it. A device puts its
counts under masks among one set of devices only, so that there is no second try with fewer once they have: where no
sum comes about all devices count as alike, because a few of them must not keep the others from training.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from fedwright.protocol import codec
from fedwright.protocol.blobs import BlobStore
from fedwright.protocol.errors import ProtocolError
from fedwright.protocol.messages import CountTerms, SumAnswer, SumAsk
from fedwright.protocol.secure.masks import WORD_BYTES, Words, to_mean
from fedwright.protocol.secure.roster import MOST_MEMBERS
from fedwright.server_runtime.methods.base import SumRequest, SumResult
from fedwright.server_runtime.rounds import events
from fedwright.server_runtime.rounds.secure.options import SecureOptions
from fedwright.server_runtime.rounds.secure.record import SumRecord, pack_record, read_record
from fedwright.server_runtime.rounds.secure.session import SumSession, TooFew, new_record, without
from fedwright.server_runtime.rounds.secure.talk import StageTalk
from fedwright.server_runtime.rounds.store.base import RoundStore
from fedwright.server_runtime.rounds.task_tracker import TaskTracker

# Under which the store keeps the one sum of counts of a run.
NAME = "counts"
ATTEMPTS = 3
# log 2, the largest divergence, and a little for rounding.
MOST_SCORE = 0.6932
# A device may have more samples than it counts for (update.weight_cap), and then its true counts are more.
SLACK = 4


class CountAdder:
    """Leads the sum of counts of a run, and asks for scores."""

    def __init__(
        self, tracker: TaskTracker, blobs: BlobStore, store: RoundStore, *, options: SecureOptions, deadline_s: float
    ) -> None:
        self._tracker = tracker
        self._blobs = blobs
        self._store = store
        self._options = options
        self._deadline_s = deadline_s

    def add_up(self, wanted: SumRequest) -> SumResult:
        """The pooled counts and the scores; devices that do not answer, or answer wrongly, are left out of either."""
        names = list(self._tracker.run_data.class_names)
        terms = CountTerms(wanted.length, self._options.least, wanted.words, names)
        pooled = wanted.pooled or self._pool(wanted, terms)
        if not pooled:
            self._warn("no sum of their counts came about, so that all devices count as alike (docs/privacy.md)")
            return SumResult((), dict.fromkeys(wanted.samples, 0.0))
        return SumResult(tuple(pooled), self._scores(wanted, terms, pooled))

    def forget(self) -> None:
        """The sum is in the notes of a plan: neither devices nor disks need keep anything of it."""
        kept = self._store.sum(NAME)
        if kept is not None:
            record = read_record(kept)
            self._store.end_sum(NAME, [])
            for device, task in record.tasks.items():
                self._tracker.questions.ask(device, SumAsk("done", "unsent", "done", task, counts=record.counts))
            for ref in record.parts.values():
                self._blobs.remove(ref.sha256)

    def _pool(self, wanted: SumRequest, terms: CountTerms) -> tuple[int, ...]:
        """The sum over all who take part; nothing when there is none to be had."""
        kept, task = self._store.sum(NAME), f"counts-{codec.new_id()}"
        devices = sorted(wanted.samples)[:MOST_MEMBERS]
        record = new_record(dict.fromkeys(devices, task), terms) if kept is None else read_record(kept)
        for _ in range(ATTEMPTS):
            session = self._session(record)
            try:
                total, record = session.run(record)
                return self._checked(total, record, wanted.samples)
            except TooFew as err:
                tasks = without(record.tasks, list(session.problems))
                if err.masked or len(tasks) < self._options.least:
                    self._warn(f"of {len(record.tasks)} devices that hide their counts: {err}")
                    break
                record = new_record(tasks, terms)
            except ProtocolError as err:
                self._warn(f"the counts of {_listed(record.present)} cannot be used: {err}")
                break
            finally:
                self._name(session.problems)
        self.forget()
        return ()

    def _session(self, record: SumRecord) -> SumSession:
        length = 0 if record.counts is None else record.counts.length
        talk = StageTalk(self._tracker, self._blobs, self._deadline_s, WORD_BYTES * length)
        return SumSession(
            talk,
            self._blobs,
            lambda made: self._store.save_sum(NAME, pack_record(made)),
            self._options.least,
            self._options.authority,
            neighbours=self._options.neighbours,
            threshold=self._options.threshold,
        )

    def _checked(self, total: Words, record: SumRecord, samples: Mapping[str, int]) -> tuple[int, ...]:
        """The counts; ProtocolError when some mask was not what it should be, or somebody counts what cannot be."""
        count = len(record.members)
        sums = np.rint(to_mean(total, 1.0, devices=count, scale=1.0)).astype(np.int64)
        most = SLACK * sum(samples.get(device, 0) for device in record.present)
        if (sums < 0).any() or int(sums.sum()) > most:
            raise ProtocolError("they add up to what no counts can come to, so one sent other counts or masks")
        return tuple(sums.tolist())

    def _scores(self, wanted: SumRequest, terms: CountTerms, pooled: Sequence[int]) -> dict[str, float]:
        found: dict[str, float] = {}

        def take(device: str, answer: SumAnswer) -> None:
            if answer.score is None or not 0 <= answer.score <= MOST_SCORE or not math.isfinite(answer.score):
                raise ProtocolError(f"its score is {answer.score} but must be from 0 to {MOST_SCORE}")
            found[device] = answer.score

        name = codec.new_id()
        ask = SumAsk(name, "unsent", "score", name, counts=terms, pooled=list(pooled), smoothing=wanted.smoothing)
        talk = StageTalk(self._tracker, self._blobs, self._deadline_s)
        self._name(talk.ask_all(dict.fromkeys(sorted(wanted.samples), ask), take))
        return dict(sorted(found.items()))

    def _name(self, problems: Mapping[str, str]) -> None:
        for device, why in sorted(problems.items()):
            self._tracker.observe(events.Warned(f"in a sum of counts: {why}", device, "refused in a sum"))

    def _warn(self, text: str) -> None:
        self._tracker.observe(events.Warned(text))


def _listed(devices: Sequence[str]) -> str:
    return ", ".join(devices[:5]) + (", …" if len(devices) > 5 else "")
