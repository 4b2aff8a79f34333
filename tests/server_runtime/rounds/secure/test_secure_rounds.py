"""Rounds whose changes are seen in sums only: real coordinator, real agents, a broker in memory, kills at any stage."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from fedwright.device_runtime.data.local import LocalData
from fedwright.device_runtime.secure.credentials import Enrolled, SumCredentials
from fedwright.device_runtime.secure.sums import SecureSums
from fedwright.protocol.blobs import make_ref
from fedwright.protocol.link.memory import MemoryBroker
from fedwright.protocol.link.security import Bundle, BundleInfo
from fedwright.protocol.messages import BlobRef, Stats, SumAnswer, SumAsk, Task
from fedwright.protocol.secure import masks
from fedwright.protocol.secure.opening import Opening
from fedwright.protocol.secure.roster import unpack_roster
from fedwright.server_runtime.fleet import authority as certificates
from fedwright.server_runtime.fleet.authority import Authority
from fedwright.server_runtime.methods.base import Method
from fedwright.server_runtime.rounds import events
from fedwright.server_runtime.rounds.secure import talk
from fedwright.server_runtime.rounds.secure.options import SecureOptions
from helpers.fleet import WAIT_S, Running, Server, agents, make_data
from helpers.tiny_artifact import start_weights

DEVICES = ("a", "b", "c", "d")
STAGES = ("keys", "share", "mask", "agree", "open")
SECURE = SecureOptions()


class PowerCut(Exception):
    """The device is gone between a question and its answer."""


class Spied(SecureSums):
    """Keeps the rows that go into sums; `act` changes or prevents answers."""

    def __init__(
        self,
        device: str,
        folder: Path,
        act: Callable[[SumAsk, SumAnswer], SumAnswer] | None = None,
        who: SumCredentials | None = None,
    ) -> None:
        super().__init__(device, folder / device, who)
        self.rows: list[np.ndarray] = []
        self._act = act

    def take(self, task: Task, stats: Stats, result: Path) -> None:
        self.rows.append(np.fromfile(result, "<f4"))
        super().take(task, stats, result)

    def answer(self, ask: SumAsk, offer: Callable[[bytes, int], BlobRef]) -> SumAnswer:
        answer = super().answer(ask, offer)
        return answer if self._act is None else self._act(ask, answer)


def weights_of(method: Method) -> dict[str, np.ndarray]:
    return method.model_of("")[1]


def run(folder: Path, **options: Any) -> tuple[Server, Method]:
    broker = MemoryBroker()
    with agents(broker, folder / "devices", *DEVICES):
        server = Server(broker, folder, devices=len(DEVICES), **options)
        return server, server.run()


def expected(rows: Mapping[str, np.ndarray], members: int) -> dict[str, np.ndarray]:
    """The model after one round by whole numbers added up in the open; every device has as many samples."""
    words = [masks.to_words(row, 1.0, devices=members, reach=SECURE.reach) for row in rows.values()]
    total = np.asarray(np.sum(words, axis=0, dtype=np.uint32))
    mean = masks.to_mean(total, float(len(rows)), devices=members, scale=masks.scale_of(members, SECURE.reach))
    found, start = {}, 0
    for name, value in sorted(start_weights().items()):
        part = mean[start : start + value.size].reshape(value.shape).astype(np.float32)
        found[name], start = value + part, start + value.size
    return found


class Fleet:
    """Agents with spied sums; a device of which `act` cuts the power comes back, or not."""

    def __init__(
        self,
        folder: Path,
        devices: tuple[str, ...] = DEVICES,
        who: Mapping[str, SumCredentials] | None = None,
        data: Mapping[str, LocalData] | None = None,
        **acts: Callable[..., SumAnswer],
    ) -> None:
        self.folder, self.broker, self.devices = folder, MemoryBroker(), devices
        self.sums = {one: Spied(one, folder, acts.get(one), (who or {}).get(one)) for one in devices}
        rows = {one: (data or {}).get(one) or make_data(one) for one in devices}
        self.running = {one: Running(self.broker, one, folder, sums=self.sums[one], data=rows[one]) for one in devices}

    def restart(self, device: str) -> None:
        """Another life of an agent, with what the last one left on its disk."""
        self.running[device].thread.join(WAIT_S)
        self.running[device].stop()
        fresh = Spied(device, self.folder)
        fresh.rows = self.sums[device].rows
        self.sums[device] = fresh
        self.running[device] = Running(self.broker, device, self.folder, sums=fresh)

    def run(self, **options: Any) -> tuple[Server, Method]:
        server = Server(self.broker, self.folder, devices=len(self.devices), rounds=1, **{"secure": SECURE, **options})
        try:
            return server, server.run()
        finally:
            self.stop()

    def stop(self) -> None:
        for one in self.running.values():
            one.stop()

    def rows(self, *devices: str) -> dict[str, np.ndarray]:
        return {device: self.sums[device].rows[-1] for device in devices}


def check_equal(method: Method, wanted: Mapping[str, np.ndarray]) -> None:
    for name, value in weights_of(method).items():
        np.testing.assert_array_equal(value, wanted[name])


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(talk, "RETURN_S", 0.3)
    monkeypatch.setattr(talk, "RESEND_S", 0.3)


def test_a_run_of_sums_ends_where_a_plain_one_does(tmp_path: Path) -> None:
    plain = weights_of(run(tmp_path / "plain")[1])
    server, method = run(tmp_path / "secure", secure=SECURE)

    for name, value in weights_of(method).items():
        # Two rounds, each off by at most n · range / 2^31 and the rounding of float32.
        np.testing.assert_allclose(value, plain[name], atol=2e-6)
    assert not server.seen(events.TaskFailed)


def test_the_sum_is_exactly_that_of_whole_numbers_in_the_open(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    _, method = fleet.run()

    check_equal(method, expected(fleet.rows(*DEVICES), 4))


def test_sums_have_the_terms_that_a_run_asks_for(tmp_path: Path) -> None:
    told = []

    def act(ask: SumAsk, answer: SumAnswer) -> SumAnswer:
        told.extend([unpack_roster(ask.roster)] if ask.stage == "share" else [])
        return answer

    fleet = Fleet(tmp_path, a=act)
    _, method = fleet.run(secure=SecureOptions(neighbours=40, threshold=0.8))

    assert {(one.neighbours, one.threshold) for one in told} == {(40, 0.8)}
    check_equal(method, expected(fleet.rows(*DEVICES), 4))


@pytest.mark.parametrize("stage", STAGES)
def test_a_device_that_vanishes_at_any_stage_leaves_the_exact_sum_of_the_others(tmp_path: Path, stage: str) -> None:
    gone: list[Fleet] = []

    def vanish(ask: SumAsk, answer: SumAnswer) -> SumAnswer:
        if ask.stage == stage:
            gone[0].running["d"].agent.leave()
            raise PowerCut
        return answer

    fleet = Fleet(tmp_path, d=vanish)
    gone.append(fleet)
    # It has left, but may be asked to measure before that is heard.
    _, method = fleet.run(quorum_ratio=0.75, deadline_s=2.0)

    # Whose part had come is in the sum, even if it is not there to open it.
    stays = stage in ("agree", "open")
    members = 3 if stage == "keys" else 4
    check_equal(method, expected(fleet.rows(*(DEVICES if stays else DEVICES[:3])), members))


@pytest.mark.parametrize("stage", STAGES)
def test_a_device_that_is_killed_and_comes_back_is_in_the_exact_sum(
    tmp_path: Path, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(talk, "RETURN_S", WAIT_S)
    cut, known = threading.Event(), []

    def die(ask: SumAsk, answer: SumAnswer) -> SumAnswer:
        if ask.stage == stage:
            cut.set()
            raise PowerCut
        return answer

    fleet = Fleet(tmp_path, b=die)

    def come_back() -> None:
        known.append(cut.wait(WAIT_S))
        fleet.restart("b")

    helper = threading.Thread(target=come_back)
    helper.start()
    _, method = fleet.run()
    helper.join()

    assert known == [True]
    check_equal(method, expected(fleet.rows(*DEVICES), 4))


@pytest.mark.parametrize("saves", [0, 1, 2, 3])
@pytest.mark.parametrize("after", [False, True], ids=["before it is durable", "right after"])
def test_a_server_that_is_killed_at_any_stage_goes_on_to_the_same_bytes(
    tmp_path: Path, saves: int, after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(talk, "RETURN_S", WAIT_S)
    fleet = Fleet(tmp_path)
    server = Server(fleet.broker, tmp_path, devices=4, rounds=1, secure=SECURE)
    store, left = server.store, [saves]

    def killed(act: Callable[..., None]) -> Callable[..., None]:
        def do(*arguments: Any) -> None:
            left[0] -= 1
            if left[0] == -1 and not after:
                raise KeyboardInterrupt
            act(*arguments)
            if left[0] == -1:
                raise KeyboardInterrupt

        return do

    # Members, shares, parts, then the sum itself.
    monkeypatch.setattr(store, "save_sum", killed(store.save_sum))
    monkeypatch.setattr(store, "end_sum", killed(store.end_sum))
    with pytest.raises(KeyboardInterrupt):
        server.run()
    try:
        method = server.run()
    finally:
        fleet.stop()

    check_equal(method, expected(fleet.rows(*DEVICES), 4))


def test_a_wrong_share_is_named_and_the_sum_is_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lie(ask: SumAsk, answer: SumAnswer) -> SumAnswer:
        if ask.stage != "open":
            return answer
        return SumAnswer(ask.sum, "open", own=answer.own, shares={**answer.shares, "a": bytes(33)})

    def wait(ask: SumAsk, answer: SumAnswer) -> SumAnswer:
        # Three open shares are enough: nobody would look at a lie that comes after them.
        assert ask.stage != "open" or refused.wait(WAIT_S)
        return answer

    refused, take = threading.Event(), Opening.take

    def watch(opening: Opening, device: str, *arguments: Any) -> None:
        try:
            take(opening, device, *arguments)
        finally:
            if device == "c":
                refused.set()

    monkeypatch.setattr(Opening, "take", watch)
    fleet = Fleet(tmp_path, c=lie, d=wait)
    server, method = fleet.run()

    check_equal(method, expected(fleet.rows(*DEVICES), 4))
    named = [event for event in server.seen(events.Warned) if event.device == "c"]
    assert ["opened a share of a that is not the one that was promised" in event.text for event in named] == [True]


def test_keys_of_another_sum_are_named_and_left_out(tmp_path: Path) -> None:
    old: list[SumAnswer] = []

    def replay(ask: SumAsk, answer: SumAnswer) -> SumAnswer:
        if ask.stage == "keys":
            old.append(answer)
            member = answer.member
            assert member is not None
            return structs.replace(answer, member=structs.replace(member, session="another"))
        return answer

    fleet = Fleet(tmp_path, c=replay)
    server, method = fleet.run()

    check_equal(method, expected(fleet.rows("a", "b", "d"), 3))
    assert "for another sum" in " ".join(event.text for event in server.seen(events.Warned) if event.device == "c")


def test_who_spoils_a_sum_costs_only_a_small_group_of_its_round(tmp_path: Path) -> None:
    devices = tuple("abcdefgh")

    def spoil(ask: SumAsk, answer: SumAnswer) -> SumAnswer:
        if ask.stage != "mask" or answer.masked is None:
            return answer
        noise = np.random.default_rng(1).bytes(answer.masked.size_bytes)
        return structs.replace(answer, masked=make_ref(noise))

    fleet = Fleet(tmp_path, devices, f=spoil)
    server, _ = fleet.run(quorum_ratio=0.25)

    closed = server.store.closed()[-1]
    assert closed.metrics["updates"] == 4
    failed = {event.device for event in server.seen(events.TaskFailed) if event.outcome == "rejected"}
    assert "f" in failed
    assert "no changes can add up to" in server.seen(events.TaskFailed)[0].detail


def warned_of(server: Server, device: str) -> str:
    """What was said of a device, as the audit log has it."""
    return " ".join(event.text for event in server.seen(events.Warned) if event.device == device)


def test_a_change_beyond_the_range_is_refused_by_its_device_and_the_others_go_on(tmp_path: Path) -> None:
    large = make_data("d")
    fleet = Fleet(tmp_path, data={"d": replace(large, x=large.x * 1000)})
    server, method = fleet.run(quorum_ratio=0.75, deadline_s=2.0)

    check_equal(method, expected(fleet.rows("a", "b", "c"), 3))
    found = {event.device: event.detail for event in server.seen(events.TaskFailed)}
    assert found.keys() == {"d"}
    assert "which is beyond the 8 that the sum has room for" in found["d"]


def test_an_old_certificate_is_named_and_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority, who = Authority.create(tmp_path / "trust"), {}
    for device in DEVICES:
        with monkeypatch.context() as patch:
            if device == "c":
                # It has ended since: certificates are good from some days before they are made.
                patch.setattr(certificates, "CERTIFICATE_DAYS", -1)
            made = authority.issue_device(device, tmp_path / "bundles" / device)
        info = BundleInfo(device, "test", "mqtts://localhost:8883", "00" * 32)
        who[device] = Enrolled(Bundle(info, authority.ca, made.cert, made.key))
    fleet = Fleet(tmp_path, who=who)
    server, method = fleet.run(secure=SecureOptions(authority=authority.ca.read_bytes()))

    check_equal(method, expected(fleet.rows("a", "b", "d"), 3))
    assert "the certificate of c is not good at this time; renew it" in warned_of(server, "c")


def test_a_device_that_masks_nothing_like_what_was_asked_for_is_named_and_left_out(tmp_path: Path) -> None:
    def shorten(ask: SumAsk, answer: SumAnswer) -> SumAnswer:
        return answer if answer.masked is None else structs.replace(answer, masked=make_ref(b"short"))

    fleet = Fleet(tmp_path, b=shorten)
    server, method = fleet.run(quorum_ratio=0.75)

    check_equal(method, expected(fleet.rows("a", "c", "d"), 4))
    assert "it offers 5 bytes of masked numbers" in warned_of(server, "b")


def test_a_device_that_gives_shares_for_others_than_its_neighbours_is_named_and_left_out(tmp_path: Path) -> None:
    def invent(ask: SumAsk, answer: SumAnswer) -> SumAnswer:
        return answer if ask.stage != "share" else structs.replace(answer, sealed={**answer.sealed, "x": b"1"})

    fleet = Fleet(tmp_path, a=invent)
    server, method = fleet.run(quorum_ratio=0.75)

    check_equal(method, expected(fleet.rows("b", "c", "d"), 4))
    assert "shares for others than its neighbours" in warned_of(server, "a")


def test_where_too_few_are_left_to_mask_all_train_anew_and_no_change_is_masked_twice(tmp_path: Path) -> None:
    masked: dict[str, set[str]] = {}
    failed: set[str] = set()

    def watch(ask: SumAsk, answer: SumAnswer) -> SumAnswer:
        if answer.masked is not None:
            masked.setdefault(ask.task, set()).add(ask.sum)
        return answer

    def fail(ask: SumAsk, answer: SumAnswer) -> SumAnswer:
        if ask.stage == "mask" and len(failed) < 2:
            failed.add(ask.task)
            return SumAnswer(ask.sum, "mask", problem="its disk is full")
        return watch(ask, answer)

    fleet = Fleet(tmp_path, a=watch, b=watch, c=fail, d=fail)
    _, method = fleet.run(quorum_ratio=0.75)

    check_equal(method, expected(fleet.rows(*DEVICES), 4))
    assert len(failed) == 2
    # Once before and once after they trained anew, each time another task.
    assert len(masked) > len(DEVICES)
    assert {len(sums) for sums in masked.values()} == {1}
