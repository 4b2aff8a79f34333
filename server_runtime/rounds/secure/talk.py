"""One stage of a sum with all its devices: ask, ask again, and take what comes until nobody is waited for."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fedwright.protocol.blobs import BlobStore
from fedwright.protocol.errors import ProtocolError
from fedwright.protocol.messages import BlobRef, SumAnswer, SumAsk
from fedwright.server_runtime.rounds.task_tracker import TaskTracker

log = logging.getLogger(__name__)

# A device answers within moments; silence this long means that it was not heard.
RESEND_S = 3.0
# A device that went away may be back by then, with all that it knew.
RETURN_S = 8.0
# The longest wait for answers that take no upload.
WAIT_S = 60.0

Take = Callable[[str, SumAnswer], None]
"""Uses an answer; ProtocolError says what is wrong with it."""


@dataclass
class StageTalk:
    """tracker: who is here, and speaks. blobs: where parts arrive, of part_bytes each. wait_s: for a stage."""

    tracker: TaskTracker
    blobs: BlobStore
    wait_s: float
    part_bytes: int = 0
    _waiting: dict[str, SumAsk] = field(default_factory=dict)
    _boots: dict[str, str | None] = field(default_factory=dict)
    _away_s: dict[str, float] = field(default_factory=dict)
    _coming: dict[str, tuple[BlobRef, SumAnswer]] = field(default_factory=dict)

    def ask_all(
        self, asks: Mapping[str, SumAsk], take: Take, *, enough: Callable[[], bool] = lambda: False
    ) -> dict[str, str]:
        """Have all asked; returns why devices gave no answer that can be used. enough: nobody else is needed."""
        questions, clock = self.tracker.questions, self.tracker.clock
        self._waiting, self._boots, self._away_s, self._coming = dict(asks), {}, {}, {}
        problems: dict[str, str] = {}
        deadline_s, asked_s = clock() + self.wait_s, clock() - RESEND_S
        while (self._waiting or self._coming) and clock() < deadline_s and not enough():
            if clock() - asked_s >= RESEND_S or self._has_moved():
                asked_s = clock()
                self._ask_again()
            self.tracker.poll(min(deadline_s, asked_s + RESEND_S))
            for device, answer in questions.answers():
                ask = self._waiting.get(device)
                if ask is not None and (answer.sum, answer.stage) == (ask.sum, ask.stage):
                    self._take(device, answer, take, problems)
            self._take_arrived(take, problems)
            self._drop_absent(clock(), problems)
        if not enough():
            problems |= dict.fromkeys([*self._waiting, *self._coming], f"no answer within {self.wait_s:.0f} s")
        return problems

    def _has_moved(self) -> bool:
        """Whether somebody who is waited for lives anew: what it was asked or offered before is forgotten there."""
        boot_of = self.tracker.questions.boot_of
        return any(boot not in (None, boot_of(device)) and boot_of(device) for device, boot in self._boots.items())

    def _ask_again(self) -> None:
        questions = self.tracker.questions
        for device in list(self._coming):
            # What lies with an edge may have gone with it: the device says again where it is.
            if questions.boot_of(device) == self._boots.get(device) and self.tracker.edge_of(device) is None:
                questions.pull(device, self._coming[device][0])
            else:
                _, answer = self._coming.pop(device)
                log.info("device %s is asked again for its part in sum %s", device, answer.sum)
        for device, ask in self._waiting.items():
            if device not in self._coming and questions.ask(device, ask):
                self._boots[device] = questions.boot_of(device)

    def _take(self, device: str, answer: SumAnswer, take: Take, problems: dict[str, str]) -> None:
        ref = answer.masked
        if ref is not None and ref.size_bytes != self.part_bytes:
            text = f"it offers {ref.size_bytes} bytes of masked numbers but {self.part_bytes} were asked for"
            answer = SumAnswer(answer.sum, answer.stage, problem=text)
        elif ref is not None and not answer.problem and not self.blobs.has(ref.sha256) and device not in self._coming:
            self._coming[device] = (ref, answer)
            self.tracker.questions.pull(device, ref)
            return
        if device not in self._coming:
            self._finish(device, answer, take, problems)

    def _take_arrived(self, take: Take, problems: dict[str, str]) -> None:
        for device, (ref, answer) in list(self._coming.items()):
            if self.blobs.has(ref.sha256):
                del self._coming[device]
                self._finish(device, answer, take, problems)

    def _finish(self, device: str, answer: SumAnswer, take: Take, problems: dict[str, str]) -> None:
        del self._waiting[device]
        self._boots.pop(device, None)
        try:
            if answer.problem:
                raise ProtocolError(answer.problem)
            take(device, answer)
        except ProtocolError as err:
            problems[device] = str(err)

    def _drop_absent(self, now_s: float, problems: dict[str, str]) -> None:
        for device in list(self._waiting):
            if self.tracker.questions.boot_of(device) is not None:
                self._away_s.pop(device, None)
            elif now_s - self._away_s.setdefault(device, now_s) >= RETURN_S:
                del self._waiting[device]
                self._coming.pop(device, None)
                problems[device] = "it went away"
