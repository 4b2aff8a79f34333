"""Whatever well-typed updates and reports come, every method ends its round in a state that a run can go on from."""

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from fedwright.protocol.blobs import make_ref
from fedwright.protocol.messages import DataSummary, Stats, Task, Update
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.builder import initial_weights
from fedwright.server_runtime.methods.base import MethodState
from fedwright.server_runtime.methods.registry import METHODS, find
from fedwright.server_runtime.public_data.examples import PublicData
from fedwright.server_runtime.rounds.absorber import Absorber, Incoming, Stage, state_problem
from fedwright.server_runtime.rounds.leave_out import LeftOutDevices
from fedwright.server_runtime.rounds.store.base import Planned
from fedwright.server_runtime.spec import ModelSpec
from helpers.examples import ORDINARY, few
from helpers.fleet import report, setting

SHAPE, CLASSES = (1, 8, 8), 4
STATS = Stats(samples=10, steps=1, train_s=0.1, cpu_s=0.1, peak_rss_bytes=1)
PUBLIC = PublicData(np.random.default_rng(3).random((20, *SHAPE), np.float32), np.arange(20) % CLASSES)
HONEST = DataSummary(24, 8, list(SHAPE), CLASSES, class_counts=[6, 6, 6, 6], descriptor=[0.25] * CLASSES)
REPORTS = {device: report(data=HONEST) for device in "abc"}
REF = make_ref(b"tensors", inline=False)
# As large as admission lets a tensor be.
VALUES = st.one_of(st.sampled_from([0.0, 1e-30, 1e6, -1e6]), st.floats(-1e6, 1e6, width=32))
COUNTS = st.integers(0, 2**53)


@st.composite
def summaries(draw: Any) -> DataSummary:
    """What a device may say of its data: any numbers, as many of them as it likes."""
    several = st.none() | st.lists(COUNTS, max_size=2 * CLASSES)
    descriptor = st.none() | st.lists(st.floats(width=32), max_size=2 * CLASSES)
    return DataSummary(
        samples=draw(st.integers(1, 2**53)),
        holdout=draw(COUNTS),
        input_shape=list(SHAPE),
        classes=CLASSES,
        class_counts=draw(several),
        score_counts=draw(several),
        pixel_std=draw(st.none() | st.floats(0, 1e30)),
        descriptor=draw(descriptor),
    )


def make(name: str) -> Any:
    """A method at its birth, on the model it is meant for."""
    entry = find(name)
    spec = ModelSpec(entry.model, SHAPE, CLASSES)
    initial = initial_weights(zoo.create(spec, seed=1))
    return entry.make(entry.params(), setting(spec=spec, initial=initial, public=PUBLIC))


class Values:
    """Tensors by task, in place of those that a reader takes from disk."""

    def __init__(self, tensors: Any) -> None:
        self._tensors = tensors

    def take(self, planned: Any, update: Any) -> Any:
        """The tensors of an update."""
        return self._tensors[update.task]

    def norm(self, planned: Any, update: Any) -> Any:
        """Of the change."""
        return float(np.sqrt(sum(np.vdot(x, x).astype(np.float64) for x in self._tensors[update.task].values())))

    def forget(self, tasks: Any) -> None:
        """Nothing is kept."""


class Rejections:
    """In place of a tracker."""

    def reject(self, plan: Any, detail: Any) -> None:
        """Nobody is told."""


def play(method: Any, reports: Any, number: int, said: Any, restart: Any) -> None:
    """One round as a coordinator plays it; `said` is each device's value and samples."""
    left = LeftOutDevices(lambda event: None)

    def plan(some: Any) -> Any:
        method.meet(some)
        return {d: (a, method.emit(d, a)) for d, a in sorted(method.assign(some, number).items())}

    incoming, tensors = [], {}
    for device, (assignment, emission) in left.do(plan, reports, restart=restart).items():
        value, samples = said[device]
        change = {name: np.full_like(tensor, value) for name, tensor in emission.weights.items()}
        whole = assignment.returns.weights == "weights"
        tensors[device] = {n: emission.weights[n] + c for n, c in change.items()} if whole else change
        task = Task(device, "boot", "run", number, REF, REF, assignment.recipe, assignment.returns, deadline_s=5.0)
        planned = Planned(device, task, assignment)
        update = Update(device, number, structs.replace(STATS, samples=samples), REF)
        incoming.append(Incoming(planned, update, (planned,)))
    notes = method.planning_state()

    def again() -> None:
        restart()
        if notes:
            method.restore_planning(notes)
        method.meet(left.usable(reports))

    tracker: Any = Rejections()
    reader: Any = Values(tensors)
    absorber = Absorber(tracker, reader, norm_factor=5.0)
    absorber.absorb(method, incoming, Stage(number, again, method.advance))


# Methods that train on the server take minutes for each try, so their turn comes in a longer run only.
CHEAP = [
    "adapters-private",
    "fedavg",
    "fedavg-masked",
    "feddropout",
    "fedgh",
    "fedkemf",
    "fedmd",
    "fedprox",
    "fedrolex",
    "fiarse",
    "flexifed",
    "hasa",
    "heterofl",
]
LONGER = settings().max_examples > settings.get_profile(ORDINARY).max_examples


@pytest.mark.parametrize("name", sorted(METHODS) if LONGER else CHEAP)
def test_every_method_ends_its_round_and_can_go_on_from_there(name: Any) -> None:
    @settings(few(1), deadline=None, suppress_health_check=list(HealthCheck))
    @given(summaries(), st.tuples(*[st.tuples(VALUES, COUNTS)] * 3))
    def check(summary: Any, answers: Any) -> None:
        method = make(name)
        first = method.state().to_bytes()
        reports = {**REPORTS, "b": report(data=summary)}
        play(
            method, reports, 1, dict(zip("abc", answers, strict=True)), lambda: method.restore(MethodState.read(first))
        )
        assert state_problem(method.state()) is None

        saved = method.state().to_bytes()
        resumed = make(name)
        resumed.restore(MethodState.read(saved))
        honest = dict.fromkeys("abc", (0.01, 10))
        play(resumed, REPORTS, 2, honest, lambda: resumed.restore(MethodState.read(saved)))
        assert state_problem(resumed.state()) is None

    check()
