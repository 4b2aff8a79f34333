"""A server that makes a sum tell of one of its devices: with members of its own, or by asking them for unlike things.

The certificates and all protocol steps are in order; what is not is who is asked for what.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from fedwright.device_runtime.secure.credentials import Enrolled
from fedwright.device_runtime.secure.summed_task import check_summed, check_trained, work_of
from fedwright.protocol.errors import DeviceError
from fedwright.protocol.link.security import SERVER_NAME, Bundle
from fedwright.protocol.messages import Effort, Hiding, Recipe, Stats, SumTerms, Task
from fedwright.protocol.secure.part import public_keys
from fedwright.protocol.secure.roster import Member, pack_roster
from helpers.cheating_sums import NAMES, TERMS, Cheat, make_bundles, refused, task_of


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bundle]:
    return make_bundles(tmp_path_factory.mktemp("trust"))


@pytest.fixture
def cheat(tmp_path: Path, bundles: dict[str, Bundle]) -> Cheat:
    return Cheat(tmp_path, bundles)


def test_the_servers_own_certificate_is_that_of_no_member(cheat: Cheat, bundles: dict[str, Bundle]) -> None:
    """The fleet's authority has signed it, for the broker; in a sum of three it would leave two."""
    members, own = cheat.members(), Enrolled(bundles[SERVER_NAME])
    server = Member(SERVER_NAME, "s", *public_keys(b"\x05" * 32), own.certificate, work=members[0].work)
    server = structs.replace(server, signature=own.sign(server.word()))

    refused(cheat.ask("d0", "share", roster=pack_roster([*members, server])), "is that of a server")


def task_with(recipe: Recipe | None = None, privacy: Hiding | None = None, **terms: Any) -> Task:
    return task_of("d1", recipe=recipe or Recipe(8, 0.1, 1), privacy=privacy, sum=structs.replace(TERMS, **terms))


LOPSIDED = {
    # The others' changes are scaled down until they are rounded to nothing.
    "a largest weight": task_with(largest_weight=10**6),
    "a clip": task_with(clip_norm=1e-9),
    "samples hidden behind a clip": task_with(privacy=Hiding(1e-9, 1e-9)),
    "a single step": task_with(Recipe(8, 0.1, 1, steps=1), effort=Effort(8, steps=1)),
    "fewer epochs": task_with(Recipe(8, 0.1, 1, epochs=2), effort=Effort(8, 2)),
    "large batches": task_with(Recipe(4096, 0.1, 1), effort=Effort(4096)),
}


@pytest.mark.parametrize("asked", LOPSIDED.values(), ids=LOPSIDED.keys())
def test_who_is_asked_to_count_or_train_otherwise_is_in_no_sum_with_the_others(cheat: Cheat, asked: Task) -> None:
    """Else the sum of one that counts and others that do not is that one's change."""
    check_summed(asked)
    for name in NAMES[1:]:
        cheat.give(name, structs.replace(asked, task=f"t-{name}"))
    roster = pack_roster(cheat.members())

    refused(cheat.ask("d0", "share", roster=roster), "trained different things")


@pytest.mark.parametrize(
    "recipe",
    [Recipe(1, 0.1, 1), Recipe(9, 0.1, 1), Recipe(8, 0.1, 1, epochs=2), Recipe(8, 0.1, 1, steps=100)],
    ids=["batches below a quarter", "larger batches", "more epochs", "steps"],
)
def test_a_task_that_is_not_what_its_sum_says_of_all_is_not_begun(recipe: Recipe) -> None:
    check_summed(task_of("d0"))
    check_summed(task_of("d0", recipe=Recipe(2, 0.1, 1)))
    with pytest.raises(DeviceError, match="otherwise than the others of its sum"):
        check_summed(task_of("d0", recipe=recipe))


@pytest.mark.parametrize(("samples", "steps"), [(0, 0), (5, 0)])
def test_a_change_of_nothing_hides_nobody_and_goes_into_no_sum(samples: int, steps: int) -> None:
    with pytest.raises(DeviceError, match="trained on no samples"):
        check_trained(task_of("d0"), Stats(samples, steps, 0.0, 0.0, 0))


def test_steps_in_whole_groups_are_as_many_as_the_epochs_take() -> None:
    for asked in (4, 12):
        task = task_with(Recipe(8, 0.1, 1, steps=asked), effort=Effort(8, multiple=4))
        check_summed(task)
        stats = Stats(17, asked, 0.0, 0.0, 0)
        if asked == 4:
            check_trained(task, stats)
        else:
            with pytest.raises(DeviceError, match="otherwise than the others of its sum"):
                check_trained(task, stats)


def test_who_counts_for_how_much_is_not_the_servers_to_say() -> None:
    terms = SumTerms("g", 3, 1.0, Effort(8), largest_weight=100)
    assert [terms.weight(samples) for samples in (7, 100, 5000)] == [7, 100, 100]


def test_work_is_the_same_for_batches_that_memory_allows() -> None:
    assert work_of(task_of("d0", recipe=Recipe(2, 0.1, 1))) == work_of(task_of("d1"))


def at_once(cheat: Cheat) -> None:
    """The devices live on."""


@pytest.mark.parametrize("then", [at_once, Cheat.restart])
def test_a_change_goes_under_masks_in_one_sum(cheat: Cheat, then: Callable[[Cheat], None]) -> None:
    """In two, each opened by others of its members, it would be in both although it agreed to one."""
    cheat.members(session="second")
    cheat.share()
    cheat.mask()
    then(cheat)

    refused(cheat.ask("d0", "keys", "third"), "goes into no other")
    again = [member for member in (cheat.ask(name, "keys", "second").member for name in NAMES) if member]
    refused(cheat.ask("d0", "share", "second", roster=pack_roster(again)), "no keys" if not again else "goes into no")
    assert not cheat.ask("d0", "mask", sharers=NAMES, sealed=cheat.sealed_for("d0")).problem


def test_two_sums_over_devices_of_which_each_agrees_to_one_are_not_to_be_had(cheat: Cheat) -> None:
    """With a third in league they would differ by one honest device on either side."""
    cheat.share(session="second")
    shared, roster = cheat.shared, cheat.roster
    cheat.share()
    cheat.mask()
    cheat.shared, cheat.roster = shared, roster
    cheat.mask(session="second")

    for name in NAMES:
        refused(cheat.masked[name], "goes into no other")
