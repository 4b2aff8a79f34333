"""Adds up counts that the server may not see: keys, masked counts, openings, then one figure of every device.

Nothing of an unfinished sum is kept: a server that is killed begins another. The maths is in
`protocol/crypto/secure_sum.py`.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial

import numpy as np
from msgspec import structs

from fedwright.protocol import codec
from fedwright.protocol.crypto.secure_sum import LEAST_DEVICES, Masked, from_bytes, unmasked
from fedwright.protocol.crypto.x25519 import agree
from fedwright.protocol.errors import NoQuorum, ProtocolError
from fedwright.protocol.messages import Answer, Ask, Report
from fedwright.server_runtime.methods.base import Method, SumRequest, SumResult
from fedwright.server_runtime.rounds.task_tracker import TaskTracker

log = logging.getLogger(__name__)

# A device answers within a moment; silence this long means that it was not heard.
RESEND_S = 5.0
# log 2, the largest divergence, and a little for rounding.
MOST_SCORE = 0.6932
_PROBE = bytes(range(32))


def ask_sum(
    tracker: TaskTracker, method: Method, reports: Mapping[str, Report], *, deadline_s: float
) -> SumResult | None:
    """What the devices that are here only tell in a sum; None when the method wants none."""
    wanted = method.wanted_sum(reports)
    return None if wanted is None else add_up(tracker, wanted, deadline_s=deadline_s)


def add_up(tracker: TaskTracker, wanted: SumRequest, *, deadline_s: float) -> SumResult:
    """The pooled counts and the scores; devices that do not answer, or answer wrongly, are left out of either."""
    keys = {device: key for device, key in wanted.keys.items() if _is_usable(device, key)}
    pooled = wanted.pooled or _pool(tracker, wanted, keys, deadline_s)
    ask = Ask(codec.new_id(), "unsent", "score", wanted.length, words=wanted.words)
    ask = structs.replace(ask, pooled=list(pooled), smoothing=wanted.smoothing)
    answers = _ask_all(tracker, keys, ask, deadline_s, check=_check_score)
    return SumResult(tuple(pooled), {device: float(answer.score or 0.0) for device, answer in answers.items()})


def _pool(tracker: TaskTracker, wanted: SumRequest, keys: dict[str, bytes], deadline_s: float) -> tuple[int, ...]:
    """Sum over all who send counts; who leaves after that makes it begin anew, with those left."""
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
            return _checked_sum(parts, opened, wanted.samples)
        keys = {device: keys[device] for device in opened}
        log.warning("devices left within a secure sum; it begins anew with %d", len(keys))
    raise NoQuorum(
        f"a secure sum needs {LEAST_DEVICES} devices that answer but has {len(keys)}; "
        f"start more devices with --hide-counts or set method.secure_sum = false"
    )


def _ask_all(
    tracker: TaskTracker, devices: Iterable[str], ask: Ask, deadline_s: float, *, check: Callable[[Answer], object]
) -> dict[str, Answer]:
    """The answers that pass the check; who is away, wrong or silent until the deadline is not in it."""
    waiting, answers = set(devices), dict[str, Answer]()
    deadline, asked_s = tracker.clock() + deadline_s, -RESEND_S
    tracker.said()
    while waiting and tracker.clock() < deadline:
        if tracker.clock() - asked_s >= RESEND_S:
            asked_s = tracker.clock()
            waiting = {device for device in sorted(waiting) if tracker.ask(device, ask)}
        tracker.poll(min(deadline, asked_s + RESEND_S))
        waiting &= tracker.present().keys()
        for device, answer in tracker.said():
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
) -> tuple[int, ...]:
    """The sum; a mask that was not what it should be makes numbers that no counts can come to."""
    own = {device: answer.own or b"" for device, answer in opened.items()}
    total = unmasked(parts, own, {device: answer.pairs for device, answer in opened.items()})
    most = sum(samples[device] for device in parts)
    if (total < 0).any() or int(np.max(total)) > most or int(total.astype(object).sum()) > most:
        raise ProtocolError(
            f"the counts of {len(parts)} devices add up to more than their {most} samples, so one of them sent other "
            f"counts or masks than it should; find it by leaving devices out"
        )
    return tuple(total.tolist())
