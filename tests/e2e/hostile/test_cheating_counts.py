"""A server written to cheat asks for the counts of devices that hide them, in every way known, and gets none."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from fedwright.device_runtime.describe.hidden_counts import SCORE_STEPS, HiddenCounts, OwnCounts
from fedwright.device_runtime.secure.credentials import Enrolled
from fedwright.protocol.blobs import make_ref
from fedwright.protocol.link.security import Bundle, BundleInfo
from fedwright.protocol.messages import BlobRef, CountTerms, SumAnswer, SumAsk
from fedwright.protocol.secure.masks import to_mean
from fedwright.protocol.secure.opening import Opening
from fedwright.protocol.secure.part import public_keys
from fedwright.protocol.secure.roster import Member, pack_roster
from fedwright.server_runtime.fleet.authority import Authority

CLASSES = 10
NAMES = [f"d{number}" for number in range(5)]
TERMS = CountTerms(CLASSES, 3)


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bundle]:
    folder = tmp_path_factory.mktemp("trust")
    authority, found = Authority.create(folder / "ours"), {}
    for name in NAMES:
        made = authority.issue_device(name, folder / name)
        found[name] = Bundle(
            BundleInfo(name, "f", "mqtts://localhost:8883", "00" * 32), authority.ca, made.cert, made.key
        )
    return found


class Cheat:
    """Real devices that hide their counts, and a server that asks them what it likes."""

    def __init__(self, folder: Path, bundles: dict[str, Bundle]) -> None:
        self.folder, self.bundles = folder, bundles
        rng = np.random.default_rng(4)
        self.counts = {name: tuple(rng.integers(0, 40, CLASSES).tolist()) for name in NAMES}
        self.blobs: dict[str, bytes] = {}
        self.restart()

    def restart(self, **limits: Any) -> None:
        """All devices lose their power; what they know is on their disks."""
        self.devices = {
            name: HiddenCounts(
                name, OwnCounts(own, **limits), folder=self.folder / name, credentials=Enrolled(self.bundles[name])
            )
            for name, own in self.counts.items()
        }

    def ask(self, name: str, stage: Any, session: str = "s", task: str = "t", **more: Any) -> SumAnswer:
        def offer(data: bytes, chunk_bytes: int) -> BlobRef:
            self.blobs[name] = data
            return make_ref(data, chunk_bytes=chunk_bytes)

        return self.devices[name].answer(SumAsk(session, "b", stage, task, counts=TERMS, **more), offer)

    def sum(self, names: list[str], session: str, task: str) -> tuple[np.ndarray | None, list[str]]:
        """What the server gets of a sum over these devices, and why some refused."""
        at = {"session": session, "task": task}
        members = [self.ask(name, "keys", **at).member for name in names]
        roster = pack_roster([member for member in members if member is not None])
        shared = {name: self.ask(name, "share", **at, roster=roster) for name in names}
        masked = {}
        for name in names:
            sealed = {owner: answer.sealed[name] for owner, answer in shared.items() if name in answer.sealed}
            masked[name] = self.ask(name, "mask", **at, sharers=names, sealed=sealed)
        signed = {name: answer.signature for name, answer in masked.items()}
        agreed = {name: self.ask(name, "agree", **at, present=names, signatures=signed) for name in names}
        signatures = {name: answer.signature for name, answer in agreed.items() if not answer.problem}
        opening = Opening(roster, names, names, {name: dict(answer.marks) for name, answer in shared.items()})
        for name in names:
            opened = self.ask(name, "open", **at, signatures=signatures)
            if opened.own is not None:
                opening.take(name, opened.own, opened.shares)
        if opening.lacking:
            return None, [answer.problem for answer in masked.values()]
        parts = {name: np.frombuffer(self.blobs[name], "<u4").copy() for name in names}
        return to_mean(opening.total(parts), 1.0, devices=len(names), scale=1.0), []


@pytest.fixture
def cheat(tmp_path: Path, bundles: dict[str, Bundle]) -> Cheat:
    return Cheat(tmp_path, bundles)


def one_hot(place: int) -> list[int]:
    return [1_000_000 if place == other else 1 for other in range(CLASSES)]


def test_an_honest_server_gets_the_exact_sum(cheat: Cheat) -> None:
    total, _ = cheat.sum(NAMES, "s", "t")
    np.testing.assert_array_equal(total, np.sum(list(cheat.counts.values()), axis=0))


@pytest.mark.parametrize("restarts", [False, True], ids=["in one life", "after restarts"])
def test_scores_against_pools_of_its_own_choosing_tell_one_figure(cheat: Cheat, restarts: bool) -> None:
    """Ten such questions once gave all counts away."""
    answers = []
    for place in range(CLASSES):
        if restarts:
            cheat.restart()
        answers.append(cheat.ask("d0", "score", f"s{place}", pooled=one_hot(place), smoothing=0.1))
    assert answers[0].score is not None
    # Six bits, whatever the pool was made to tell.
    assert answers[0].score * SCORE_STEPS / np.log(2) == pytest.approx(
        round(answers[0].score * SCORE_STEPS / np.log(2))
    )
    assert [answer.score for answer in answers[1:]] == [None] * (CLASSES - 1)
    assert all("has told how unlike another pool it is" in answer.problem for answer in answers[1:])
    # Other smoothing, other names of classes or a longer list are other questions.
    for more in ({"smoothing": 0.2}, {"smoothing": 0.1, "session": "again", "task": "another"}):
        again = cheat.ask("d0", "score", pooled=one_hot(0), **more)
        assert (again.score is None) == (more["smoothing"] == 0.2)


@pytest.mark.parametrize("restarts", [False, True], ids=["in one life", "after restarts"])
def test_two_sums_that_differ_by_one_device_are_not_opened(cheat: Cheat, restarts: bool) -> None:
    cheat.sum(NAMES, "s", "t")
    if restarts:
        cheat.restart()
    total, problems = cheat.sum(NAMES[:4], "s2", "t2")

    assert total is None
    assert set(problems) == {problems[0]}
    assert "were in a sum over other devices; its owner lets them be in 1" in problems[0]
    # The same devices may be summed again, as after a server that lost its disk: that tells nothing new.
    assert cheat.sum(NAMES, "s3", "t3")[0] is not None


@pytest.mark.parametrize("restarts", [False, True], ids=["in one life", "after restarts"])
def test_counts_are_under_masks_among_one_set_of_devices(cheat: Cheat, restarts: bool) -> None:
    """Of two sets some might agree to one and some to the other; with a third in league their sums tell of two."""
    for names, session, task in ((NAMES, "s", "t"), (NAMES[:4], "s2", "t2")):
        at = {"session": session, "task": task}
        members = [cheat.ask(name, "keys", **at).member for name in names]
        roster = pack_roster([member for member in members if member is not None])
        shared = {name: cheat.ask(name, "share", **at, roster=roster) for name in names}
        sealed = {owner: answer.sealed["d0"] for owner, answer in shared.items() if "d0" in answer.sealed}
        answer = cheat.ask("d0", "mask", **at, sharers=names, sealed=sealed)
        assert bool(answer.problem) == (names != NAMES)
        if restarts:
            cheat.restart()
    assert "were in a sum over other devices" in answer.problem
    assert answer.masked is None


def test_what_was_opened_is_not_forgotten_after_many_others(cheat: Cheat) -> None:
    cheat.sum(NAMES, "s", "t")
    for number in range(300):
        cheat.ask("d0", "keys", f"x{number}", f"other-{number}")
    assert cheat.sum(NAMES[:4], "s2", "t2")[0] is None


def test_keys_of_the_servers_own_making_are_no_members(cheat: Cheat) -> None:
    """Two of them once opened a sum."""
    own = cheat.ask("d0", "keys").member
    assert own is not None
    stranger = cheat.bundles["d1"]
    for name, certificate in (("d1", b""), ("d1", own.certificate), ("d2", Enrolled(stranger).certificate)):
        keys = [public_keys(bytes([number]) * 32) for number in (1, 2)]
        made = [Member(name, "s", *keys[0], certificate, b"\0" * 64, own.work)]
        made.append(Member("d9", "s", *keys[1], certificate, b"\0" * 64, own.work))
        answer = cheat.ask("d0", "share", roster=pack_roster([own, *made]))
        assert answer == SumAnswer("s", "share", problem=answer.problem)
        assert answer.problem


def test_members_that_count_something_else_are_refused(cheat: Cheat) -> None:
    """A sum of words of one and classes of others would be a sum of known numbers."""
    members = [cheat.ask(name, "keys").member for name in NAMES]
    other = SumAsk("s", "b", "keys", "t2", counts=structs.replace(TERMS, length=CLASSES + 1))
    changed = cheat.devices["d4"].answer(other, lambda data, size: make_ref(data)).member
    roster = pack_roster([member for member in [*members[:4], changed] if member is not None])
    assert "trained different things" in cheat.ask("d0", "share", roster=roster).problem


def test_an_owner_may_demand_more_devices(cheat: Cheat) -> None:
    cheat.restart(least=6)
    members = [cheat.ask(name, "keys").member for name in NAMES]
    roster = pack_roster([member for member in members if member is not None])
    assert "it takes 6" in cheat.ask("d0", "share", roster=roster).problem


def test_a_note_that_cannot_be_read_tells_nothing_more(cheat: Cheat) -> None:
    cheat.ask("d0", "score", pooled=one_hot(0))
    (cheat.folder / "d0" / "counts" / "told").write_bytes(b"\xc1 spoilt")
    cheat.restart()
    answer = cheat.ask("d0", "score", pooled=one_hot(1))
    assert answer.score is None
    assert "cannot be read, so that no count is told" in answer.problem
