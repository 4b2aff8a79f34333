"""Adds up counts that the server may not see: keys, masked counts, openings, then one figure of every device.

Nothing of an unfinished sum is kept: a server that is killed begins another. The maths is in
`protocol/crypto/secure_sum.py`.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import numpy as np
from msgspec import structs

from fedwright.protocol import codec
from fedwright.protocol.crypto.secure_sum import LEAST_DEVICES, Masked, from_bytes, unmasked
from fedwright.protocol.crypto.x25519 import agree
from fedwright.protocol.errors import ProtocolError
from fedwright.protocol.messages import Answer, Ask, Report
from fedwright.server_runtime.methods.base import Method, SumRequest, SumResult
from fedwright.server_runtime.rounds import events
from fedwright.server_runtime.rounds.task_tracker import TaskTracker

log = logging.getLogger(__name__)

# A device answers within a moment; silence this long means that it was not heard.
RESEND_S = 5.0
# log 2, the largest divergence, and a little for rounding.
MOST_SCORE = 0.6932
# A device may have more samples than it counts for (update.weight_cap), and then its true counts are more.
SLACK = 4
_PROBE = bytes(range(32))


def ask_sum(
    tracker: TaskTracker, method: Method, reports: Mapping[str, Report], *, deadline_s: float
) -> SumResult | None:
    """What the devices that are here only tell in a sum; None when the method wants none."""
    wanted = method.wanted_sum(reports)
    return None if wanted is None else add_up(tracker, wanted, deadline_s=deadline_s)


def add_up(tracker: TaskTracker, wanted: SumRequest, *, deadline_s: float) -> SumResult:
    """The pooled counts and the scores; devices that do not answer, or answer wrongly, are left out of either.

    Where no sum comes about, all devices count as alike: a few of them must not keep the others from training.
    """
    keys = {device: key for device, key in wanted.keys.items() if _is_usable(device, key)}
    pooled = wanted.pooled or _pool(tracker, wanted, keys, deadline_s)
    if pooled is None:
        text = f"no secure sum of {len(keys)} devices came about, so that all of them count as alike; "
        tracker.observe(events.Warned(text + "mend them, or set method.secure_sum = false"))
        return SumResult((), dict.fromkeys(keys, 0.0))
    ask = Ask(codec.new_id(), "unsent", "score", wanted.length, words=wanted.words)
    ask = structs.replace(ask, pooled=list(pooled), smoothing=wanted.smoothing)
    answers = _ask_all(tracker, keys, ask, deadline_s, check=_check_score)
    return SumResult(tuple(pooled), {device: float(answer.score or 0.0) for device, answer in answers.items()})


def _pool(
    tracker: TaskTracker, wanted: SumRequest, keys: dict[str, bytes], deadline_s: float
) -> tuple[int, ...] | None:
    """Sum over all who send counts; None when there is none to be had.

    A sum that no counts can come to holds wrong masks, and nobody can tell whose: it is made anew in groups that have
    no device in common, so that no two sums differ by few devices, and groups that come out wrong again are left out.
    """
    summed, devices = _sum(tracker, wanted, keys, deadline_s)
    if summed is not None or len(devices) < 2 * LEAST_DEVICES:
        if summed is None and len(devices) >= LEAST_DEVICES:
            _warn_of(tracker, devices)
        return summed
    found: list[tuple[int, ...]] = []
    for group in _groups(devices):
        part, present = _sum(tracker, wanted, {device: keys[device] for device in group}, deadline_s)
        if part is None:
            _warn_of(tracker, present or group)
        else:
            found.append(part)
    return tuple(np.sum(found, axis=0).tolist()) if found else None


def _groups(devices: Sequence[str]) -> list[list[str]]:
    """As many groups as there can be that hide their parts."""
    count = len(devices) // LEAST_DEVICES
    return [list(devices[start::count]) for start in range(count)]


def _warn_of(tracker: TaskTracker, devices: Sequence[str]) -> None:
    text = (
        f"the counts of {', '.join(devices)} add up to what no counts can come to, so one of them sent other counts or "
        f"masks than it should; they are left out of the sum"
    )
    tracker.observe(events.Warned(text))


def _sum(
    tracker: TaskTracker, wanted: SumRequest, keys: dict[str, bytes], deadline_s: float
) -> tuple[tuple[int, ...] | None, list[str]]:
    """The sum, and over whom; None when it is wrong or too few answer. Who leaves in it makes it begin anew."""
    while len(keys) >= LEAST_DEVICES:
        ask = Ask(codec.new_id(), "unsent", "mask", wanted.length, keys=keys, words=wanted.words)
        answers = _ask_all(tracker, keys, ask, deadline_s, check=partial(_read, wanted.length))
        if len(answers) < LEAST_DEVICES:
            keys = {device: keys[device] for device in answers}
            continue
        ask = structs.replace(ask, stage="open", present=sorted(answers))
        opened = _ask_all(tracker, answers, ask, deadline_s, check=partial(_check_opened, keys.keys() - answers.keys()))
        if len(opened) == len(answers):
            parts = {device: _read(wanted.length, answer) for device, answer in answers.items()}
            return _checked_sum(parts, opened, wanted.samples), sorted(answers)
        keys = {device: keys[device] for device in opened}
        log.warning("devices left within a secure sum; it begins anew with %d", len(keys))
    return None, sorted(keys)


def _ask_all(
    tracker: TaskTracker, devices: Iterable[str], ask: Ask, deadline_s: float, *, check: Callable[[Answer], object]
) -> dict[str, Answer]:
    """The answers that pass the check; who is away, wrong or silent until the deadline is not in it."""
    waiting, answers = set(devices), dict[str, Answer]()
    deadline, asked_s = tracker.clock() + deadline_s, -RESEND_S
    tracker.questions.answers(Answer)
    ask = structs.replace(ask, class_names=list(tracker.run_data.class_names))
    while waiting and tracker.clock() < deadline:
        if tracker.clock() - asked_s >= RESEND_S:
            asked_s = tracker.clock()
            waiting = {device for device in sorted(waiting) if tracker.questions.ask(device, ask)}
        tracker.poll(min(deadline, asked_s + RESEND_S))
        waiting &= tracker.present().keys()
        for device, answer in tracker.questions.answers(Answer):
            if device in waiting and (answer.sum, answer.stage) == (ask.sum, ask.stage):
                waiting.discard(device)
                if _passes(device, answer, check):
                    answers[device] = answer
    return dict(sorted(answers.items()))


def _passes(device: str, answer: Answer, check: Callable[[Answer], object]) -> bool:
    try:
        if answer.problem:
            raise ProtocolError(answer.problem)
        check(answer)
    except ProtocolError as err:
        log.warning("device %s is left out of a secure sum: %s", device, err)
        return False
    return True


def _is_usable(device: str, key: bytes) -> bool:
    try:
        agree(_PROBE, key)
    except ProtocolError as err:
        log.warning("device %s is left out of a secure sum: %s", device, err)
        return False
    return True


def _read(length: int, answer: Answer) -> Masked:
    return from_bytes(answer.masked, length)


def _check_opened(gone: Iterable[str], answer: Answer) -> None:
    if answer.own is None or answer.pairs.keys() != set(gone):
        raise ProtocolError("it opened other seeds than those that were asked for")


def _check_score(answer: Answer) -> None:
    if answer.score is None or not 0 <= answer.score <= MOST_SCORE:
        raise ProtocolError(f"its score is {answer.score} but must be from 0 to {MOST_SCORE}")


def _checked_sum(
    parts: Mapping[str, Masked], opened: Mapping[str, Answer], samples: Mapping[str, int]
) -> tuple[int, ...] | None:
    """The sum; None when a mask was not what it should be, which makes numbers that no counts can come to."""
    own = {device: answer.own or b"" for device, answer in opened.items()}
    total = unmasked(parts, own, {device: answer.pairs for device, answer in opened.items()})
    most = SLACK * sum(samples[device] for device in parts)
    if (total < 0).any() or int(np.max(total)) > most or int(total.astype(object).sum()) > most:
        return None
    return tuple(total.tolist())
