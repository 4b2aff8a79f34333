"""Whose changes are summed with whose: nobody who takes far more steps than the others, or the sum would tell of it."""

from msgspec import structs

from fedwright.device_runtime.secure.summed_task import check_summed
from fedwright.protocol.blobs import make_ref
from fedwright.protocol.messages import Effort, Recipe, Returns, SumTerms, Task
from fedwright.server_runtime.methods.base import Assignment
from fedwright.server_runtime.rounds.retry import stays_in_sum
from fedwright.server_runtime.rounds.secure.groups import by_batch, effort_of, group_of
from fedwright.server_runtime.rounds.store.base import Planned, Position
from fedwright.server_runtime.spec import ModelSpec, Structure


def planned(device: str, recipe: Recipe) -> Planned:
    ref, returns = make_ref(b"the same for all"), Returns()
    task = Task(device, "b", "r", 1, ref, ref, recipe, returns, deadline_s=10.0)
    return Planned(device, task, Assignment(Structure(ModelSpec("mlp", (1, 28, 28), 10)), recipe, returns))


def members(*batches: int) -> list[Planned]:
    return [planned(f"d{place}", Recipe(batch, 0.1, 1)) for place, batch in enumerate(batches)]


def test_devices_with_far_smaller_batches_make_groups_of_their_own() -> None:
    found = by_batch({"g": members(32, 3, 8, 9, 2, 32, 7)})

    batches = [sorted(one.task.recipe.batch for one in group) for group in found.values()]
    assert batches == [[8, 9, 32, 32], [2, 3, 7]]
    assert by_batch({"g": members(32, 32, 8)}).keys() == {"g"}


def test_each_device_finds_that_it_does_as_all_in_its_group_do() -> None:
    for group in by_batch({"g": members(32, 3, 8, 9)}).values():
        terms = SumTerms("g", 3, 8.0, effort_of(group))
        for one in group:
            check_summed(structs.replace(one.task, sum=terms))


def test_what_all_do_is_said_as_epochs_as_steps_or_in_whole_groups() -> None:
    def steps(*counts: int) -> Effort:
        return effort_of([planned(f"d{count}", Recipe(8, 0.1, 1, steps=count)) for count in counts])

    assert effort_of(members(8, 4)) == Effort(8)
    assert steps(20, 20) == Effort(8, steps=20)
    assert steps(20, 35) == Effort(8, multiple=5)


def test_who_trains_for_other_epochs_is_in_another_group() -> None:
    recipes = (Recipe(8, 0.1, 1), Recipe(8, 0.1, 2), Recipe(8, 0.1, 1, epochs=2), Recipe(8, 0.1, 1, steps=3))
    names = [group_of(planned("a", recipe), Position(1, 0)) for recipe in recipes]
    assert [name == names[0] for name in names] == [True, True, False, False]


def test_a_batch_shrinks_for_memory_as_far_as_the_others_were_told() -> None:
    terms = SumTerms("g", 3, 8.0, Effort(32))
    found = [stays_in_sum(terms, planned("a", Recipe(batch, 0.1, 1)).assignment) for batch in (32, 8, 7, 64)]
    assert found == [True, True, False, False]
    assert stays_in_sum(None, planned("a", Recipe(1, 0.1, 1)).assignment)
