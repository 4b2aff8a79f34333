"""A server written to cheat leads sums of enrolled devices, and gets nothing beyond the sum; nor after a restart."""

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from fedwright.device_runtime.policy import Policy
from fedwright.device_runtime.secure.credentials import Enrolled
from fedwright.device_runtime.secure.summed_task import check_summed
from fedwright.device_runtime.secure.sums import SecureSums
from fedwright.protocol.blobs import make_ref
from fedwright.protocol.errors import DeviceError, PolicyRefused
from fedwright.protocol.link.security import Bundle
from fedwright.protocol.messages import Recipe, Returns, SumAsk, SumTerms
from fedwright.protocol.secure.masks import scale_of, to_mean
from fedwright.protocol.secure.noisy_words import noisy_scale
from fedwright.protocol.secure.opening import Opening
from fedwright.protocol.secure.roster import Certificates, Member, pack_roster
from helpers.cheating_sums import LENGTH, NAMES, REACH, TERMS, Cheat, make_bundles, refused, task_of


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bundle]:
    return make_bundles(tmp_path_factory.mktemp("trust"))


@pytest.fixture
def cheat(tmp_path: Path, bundles: dict[str, Bundle]) -> Cheat:
    return Cheat(tmp_path, bundles)


def test_an_honest_server_gets_the_sum_and_each_neighbour_opens_one_kind_of_share(cheat: Cheat) -> None:
    cheat.share()
    cheat.mask(NAMES[:5])
    present = NAMES[:5]
    signatures = cheat.agree(present)
    marks = {name: dict(answer.marks) for name, answer in cheat.shared.items()}
    opening = Opening(cheat.roster, NAMES, present, marks)
    for name in present:
        opened = cheat.ask(name, "open", signatures=signatures)
        assert opened.own is not None
        opening.take(name, opened.own, opened.shares)
    total = opening.total({name: np.frombuffer(cheat.blobs[name], "<u4").copy() for name in present})

    mean = to_mean(total, 5.0, devices=6, scale=scale_of(6, REACH))
    np.testing.assert_allclose(mean, np.mean([cheat.rows[name] for name in present], axis=0), atol=1e-8)


def test_neighbours_that_the_server_invents_get_no_shares(cheat: Cheat, bundles: dict[str, Bundle]) -> None:
    members = cheat.members()
    stranger = Enrolled(bundles["mallory"])
    work = members[0].work
    for name in ("mallory", "d5"):
        invented = Member(name, "s", b"\x01" * 32, b"\x02" * 32, stranger.certificate, work=work)
        invented = structs.replace(invented, signature=stranger.sign(invented.word()))
        refused(cheat.ask("d0", "share", roster=pack_roster([*members[:5], invented])), "not one of this fleet's")
    unsigned = Member("x", "s", b"\x01" * 32, b"\x02" * 32, work=work)
    refused(cheat.ask("d0", "share", roster=pack_roster([*members, unsigned])), "gives no certificate")


def test_replaced_keys_are_noticed(cheat: Cheat) -> None:
    members = cheat.members()
    others = [structs.replace(members[1], mask_key=b"\x07" * 32), *members[2:]]
    refused(cheat.ask("d0", "share", roster=pack_roster([members[0], *others])), "has not signed")
    own = structs.replace(members[0], share_key=b"\x07" * 32)
    refused(cheat.ask("d0", "share", roster=pack_roster([own, *members[1:]])), "keys that this device made")


def test_an_old_certificate_is_not_believed(cheat: Cheat, bundles: dict[str, Bundle]) -> None:
    members = cheat.members()
    later = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(days=2000)
    who = Enrolled(bundles["d0"])
    who._peers = Certificates(bundles["d0"].ca.read_bytes(), now=lambda: later)
    cheat.devices["d0"] = SecureSums("d0", cheat.folder / "d0", who)
    refused(cheat.ask("d0", "share", roster=pack_roster(members)), "not good at this time")


def test_a_tiny_group_is_refused(cheat: Cheat) -> None:
    refused(cheat.ask("d0", "share", roster=pack_roster(cheat.members(NAMES[:1]))), "it takes 4")
    refused(cheat.ask("d0", "share", roster=pack_roster(cheat.members(NAMES[:3]))), "it takes 4")


def test_members_that_trained_something_known_are_refused(cheat: Cheat) -> None:
    cheat.give("d1", task_of("d1", weights=make_ref(b"another model")))
    refused(cheat.ask("d0", "share", roster=pack_roster(cheat.members())), "trained different things")


@pytest.mark.parametrize(
    "changes",
    [
        {"recipe": Recipe(8, 0.0, 1)},
        {"recipe": Recipe(8, 0.1, 1, epochs=0)},
        {"recipe": Recipe(8, 0.1, 1, classes=[1])},
        {"returns": Returns(weights="weights")},
        {"returns": Returns(masked=True)},
    ],
    ids=["rate of zero", "no epochs", "one class", "weights", "some entries"],
)
def test_tasks_whose_change_hides_nobody_are_not_begun(changes: dict[str, Any]) -> None:
    with pytest.raises(DeviceError):
        check_summed(task_of("d0", **changes))


def test_a_change_asked_for_in_the_clear_or_in_a_smaller_sum_is_refused_by_the_owner() -> None:
    policy = Policy(least_in_sum=5)

    for task in (task_of("d0", sum=None), task_of("d0")):
        with pytest.raises(PolicyRefused, match="in sums over 5 or more"):
            policy.check(task, 0)
    policy.check(task_of("d0", sum=structs.replace(TERMS, least=5)), 0)


def after_restart(cheat: Cheat) -> None:
    cheat.restart()


def at_once(cheat: Cheat) -> None:
    """The devices live on."""


@pytest.mark.parametrize("then", [at_once, after_restart])
def test_no_stage_is_answered_twice_with_others(cheat: Cheat, then: Callable[[Cheat], None]) -> None:
    cheat.share()
    then(cheat)
    fewer = pack_roster(cheat.members(NAMES[:5]))
    refused(cheat.ask("d0", "share", roster=fewer), "other members before")
    cheat.mask()
    then(cheat)
    sealed = {name: data for name, data in cheat.sealed_for("d0").items() if name != "d5"}
    refused(cheat.ask("d0", "mask", sharers=NAMES[:5], sealed=sealed), "other devices that have shared before")
    signatures = cheat.agree()
    cheat.ask("d0", "open", signatures=signatures)
    then(cheat)
    refused(cheat.ask("d0", "agree", present=NAMES[:5], signatures=cheat.signed), "other devices in it before")


@pytest.mark.parametrize("then", [at_once, after_restart])
def test_a_change_that_may_be_opened_goes_into_no_second_sum(cheat: Cheat, then: Callable[[Cheat], None]) -> None:
    cheat.members(session="second")
    cheat.share()
    cheat.mask()
    cheat.agree()
    then(cheat)

    refused(cheat.ask("d0", "keys", "third"), "goes into no other")
    second = pack_roster([m for m in (cheat.ask(name, "keys", "second").member for name in NAMES) if m])
    refused(cheat.ask("d0", "share", "second", roster=second), "goes into no other")


def test_a_subset_too_small_or_without_the_device_is_not_agreed_to(cheat: Cheat) -> None:
    cheat.share()
    cheat.mask()

    refused(cheat.ask("d0", "agree", present=NAMES[:4], signatures=cheat.signed), "4 of 6 members are left")
    refused(cheat.ask("d0", "agree", present=NAMES[:3], signatures=cheat.signed), "it takes 4")
    refused(cheat.ask("d0", "agree", present=NAMES[1:], signatures=cheat.signed), "leaves this one out")
    refused(cheat.ask("d0", "agree", present=["d0", *NAMES[:5]], signatures=cheat.signed), "not in it")


def test_nothing_is_opened_before_enough_members_signed_the_same(cheat: Cheat) -> None:
    cheat.share()
    cheat.mask()
    refused(cheat.ask("d0", "open", signatures=dict.fromkeys(NAMES, b"")), "has not agreed")
    signatures = cheat.agree()

    few = {name: signatures[name] for name in NAMES[:4]}
    refused(cheat.ask("d0", "open", signatures=few), "4 members agree on this sum but 5 must")
    forged = few | {"d4": bytes(64), "d5": signatures["d0"]}
    refused(cheat.ask("d0", "open", signatures=forged), "has not signed")


def test_parts_masked_among_other_sharers_are_not_agreed_to(cheat: Cheat) -> None:
    cheat.share()
    cheat.mask()
    wrong = cheat.signed | {"d3": cheat.signed["d2"]}
    refused(cheat.ask("d0", "agree", present=NAMES, signatures=wrong), "d3 has not signed")


def test_nothing_is_masked_while_shares_are_kept_back_or_are_those_of_others(cheat: Cheat) -> None:
    cheat.share()
    sealed = cheat.sealed_for("d0")

    for wrong in ({name: sealed[name] for name in NAMES[2:]}, sealed | {"d0": sealed["d1"]}, {}):
        answer = cheat.ask("d0", "mask", sharers=NAMES, sealed=wrong)
        refused(answer, "the shares of some neighbours are missing, or are not this device's to keep")
    refused(cheat.ask("d0", "agree", present=NAMES, signatures={}), "has sent nothing into this sum")
    assert "d0" not in cheat.blobs

    assert not cheat.ask("d0", "mask", sharers=NAMES, sealed=sealed).problem


def test_stages_out_of_order_are_refused(cheat: Cheat) -> None:
    refused(cheat.ask("d0", "share", roster=b""), "no keys for that sum")
    cheat.members()
    refused(cheat.ask("d0", "mask", sharers=NAMES), "does not know who is in this sum")
    refused(cheat.ask("d0", "agree", present=NAMES), "does not know who is in this sum")
    other = cheat.devices["d0"].answer(SumAsk("s", "b", "keys", "another-task"), lambda data, size: make_ref(data))
    refused(other, "no change of that task")


def test_shares_of_another_round_open_nothing(cheat: Cheat) -> None:
    cheat.share(session="earlier")
    earlier = {name: cheat.sealed_for(name) for name in NAMES}
    cheat.share()
    sealed = {**cheat.sealed_for("d0"), "d1": earlier["d0"]["d1"]}
    cheat.masked = {"d0": cheat.ask("d0", "mask", sharers=NAMES, sealed=sealed)}
    for name in NAMES[1:]:
        cheat.masked[name] = cheat.ask(name, "mask", sharers=NAMES, sealed=cheat.sealed_for(name))
    cheat.signed = {name: answer.signature for name, answer in cheat.masked.items()}
    opened = cheat.ask("d0", "open", signatures=cheat.agree())

    assert opened.shares.keys() == {"d2", "d3", "d4", "d5"}


NOISY = structs.replace(TERMS, clip_norm=1.0, noise_multiplier=4.0)


@pytest.mark.parametrize("then", [at_once, after_restart])
def test_who_asks_twice_gets_the_same_noise(cheat: Cheat, then: Callable[[Cheat], None]) -> None:
    """The mean of two draws would have less of it."""
    cheat.give("d0", task_of("d0", sum=NOISY))
    for name in NAMES[1:]:
        cheat.give(name, task_of(name, sum=NOISY))
    cheat.share()
    cheat.mask()
    first = dict(cheat.blobs)
    then(cheat)
    cheat.mask()

    assert cheat.blobs == first


def test_a_noisy_sum_that_is_opened_is_noisy_though_all_but_the_least_leave(cheat: Cheat) -> None:
    for name in NAMES:
        cheat.give(name, task_of(name, sum=NOISY))
    cheat.share()
    cheat.mask()
    present = NAMES[:5]
    signatures = cheat.agree(present)
    opening = Opening(cheat.roster, NAMES, present, {n: dict(a.marks) for n, a in cheat.shared.items()})
    for name in present:
        opened = cheat.ask(name, "open", signatures=signatures)
        opening.take(name, opened.own or b"", opened.shares)
    total = opening.total({name: np.frombuffer(cheat.blobs[name], "<u4").copy() for name in present})

    scale = noisy_scale(6, LENGTH, clip=1.0, multiplier=4.0)
    mean = to_mean(total, 1.0, devices=6, scale=scale.scale)
    clipped = sum(row / max(1.0, float(np.linalg.norm(row))) for row in (cheat.rows[name] for name in present))
    # Five of six stay and add sqrt(5 / 4) of what is promised; the sum without noise is far from it.
    assert np.std(mean - clipped) == pytest.approx(4.0 * (5 / 4) ** 0.5, rel=0.35)


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        (structs.replace(TERMS, clip_norm=1.0), "with noise of 4 or more, not 0"),
        (structs.replace(NOISY, noise_multiplier=3.9), "with noise of 4 or more, not 3.9"),
    ],
    ids=["no noise", "less noise"],
)
def test_a_task_whose_noise_hides_less_than_its_owner_wants_is_not_begun(terms: SumTerms, words: str) -> None:
    with pytest.raises(PolicyRefused, match=words):
        Policy(least_noise_in_sum=4.0).check(task_of("d0", sum=terms), 0)


def test_noise_without_a_clip_hides_nothing_and_is_not_begun() -> None:
    with pytest.raises(DeviceError, match="takes changes up to a clip"):
        check_summed(task_of("d0", sum=structs.replace(NOISY, clip_norm=None)))


def test_members_who_were_promised_other_noise_are_in_no_sum_together(cheat: Cheat) -> None:
    """One who alone adds noise would be told from the others."""
    cheat.give("d0", task_of("d0", sum=NOISY))
    for name in NAMES[1:]:
        cheat.give(name, task_of(name, sum=structs.replace(NOISY, noise_multiplier=0.01)))
    roster = pack_roster(cheat.members())

    refused(cheat.ask("d0", "share", roster=roster), "trained different things")
