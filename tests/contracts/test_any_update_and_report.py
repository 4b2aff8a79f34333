"""Whatever well-typed updates and reports come, a run of every method ends, also one that is killed on its way."""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from msgspec import structs

from fedwright.protocol.messages import DataSummary, Refusal, Report, Stats
from fedwright.server_runtime.config import config_from_text
from fedwright.server_runtime.methods.base import MethodState
from fedwright.server_runtime.methods.registry import METHODS, find
from fedwright.server_runtime.public_data.examples import PublicData
from fedwright.server_runtime.rounds.absorber import state_problem
from helpers.any_fleet import QUICK, conduct_any, share_artifacts, spoilt, strange, usual_summary
from helpers.examples import few
from helpers.fleet import report
from helpers.message_strategies import of_type
from helpers.resume import Killed, final_state

SHAPE, CLASSES, ROUNDS = (1, 8, 8), 4, 2
PUBLIC = PublicData(np.random.default_rng(3).random((20, *SHAPE), np.float32), np.arange(20) % CLASSES)
USUAL = usual_summary(SHAPE, CLASSES)
HONEST, OTHERS = ("a", "c", "e"), ("b", "d")
EXAMPLES = 4
# Magnitudes that admission lets pass, and some that it does not.
SIZES = st.one_of(
    st.sampled_from([0.0, 1e-30, 1e6, -1e6, 1e9, 3e38]), st.floats(-1e6, 1e6, width=32), st.floats(-1, 1, width=32)
)
COUNTS = st.one_of(st.sampled_from([0, 1, 24, 2**53]), st.integers(0, 2**53))
NUMBERS = st.lists(st.floats(width=32), max_size=20)
CONFIG = """
[run]
name = "run"
folder = "{folder}"
rounds = {rounds}
[fleet]
devices = {devices}
join_timeout_s = 0.2
[model]
model = "{model}"
[method]
name = "{method}"
{more}
[train]
batch = 8
[update]
combine = "{combine}"
[export]
global_model = false
"""


@st.composite
def summaries(draw: Any) -> DataSummary:
    """What a device may say of its data: any numbers, as many of them as it likes, often about fitting data."""
    several = st.none() | st.lists(COUNTS, max_size=2 * CLASSES)
    fits = draw(st.booleans())
    return DataSummary(
        samples=draw(COUNTS),
        holdout=draw(COUNTS),
        input_shape=list(SHAPE) if fits else draw(st.lists(st.integers(1, 10**6), max_size=4)),
        classes=CLASSES if fits else draw(st.integers(1, 10**6)),
        class_counts=draw(several),
        score_counts=draw(several),
        pixel_std=draw(st.none() | st.floats(0)),
        descriptor=draw(st.none() | NUMBERS),
        number_descriptor=draw(st.none() | NUMBERS),
        class_names=draw(st.none() | st.just(None) | st.lists(st.text(min_size=1, max_size=9), max_size=5)),
        input_dtype=draw(st.sampled_from(["", "float32", "int64", "text"])),
    )


@st.composite
def reports(draw: Any) -> Report:
    """Any report of a device."""
    drawn = draw(of_type(Report))
    answer: Report = structs.replace(
        drawn, data=draw(summaries()), edge=False, sum_key=None, trains=draw(st.booleans()) or True
    )
    return answer


STATS = of_type(Stats).flatmap(
    lambda drawn: st.tuples(COUNTS, st.integers(0, 3)).map(
        lambda two: structs.replace(drawn, samples=two[0], steps=two[1], correct_before=None, correct_after=None)
    )
)
REFUSALS = st.tuples(st.sampled_from(["over_budget", "bad_artifact", "failed"]), COUNTS, COUNTS)
ANSWERS = st.one_of(
    st.tuples(st.just("spoilt"), STATS, st.sampled_from(["all", "tensor", "entry", "noise"]), SIZES),
    st.tuples(st.just("strange"), STATS, st.sampled_from(["none", "one less", "one more", "doubles", "flat", "nan"])),
    st.tuples(st.just("refusal"), REFUSALS),
)


def answering(drawn: Any) -> Any:
    """A device that answers so to every task."""

    def answer(task: Any, values: Any) -> Any:
        kind, first, *more = drawn
        if kind == "refusal":
            reason, need, free = first
            return Refusal(task.task, reason, "no", need_bytes=need, free_bytes=free)
        return first, (spoilt(values, *more) if kind == "spoilt" else strange(values, *more))

    return answer


def die_at(number: int) -> Any:
    """An observer that ends the server at the event of this number."""
    left = [number]

    def observe(event: Any) -> None:
        left[0] -= 1
        if not left[0]:
            raise Killed

    return observe


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_run_ends_whatever_devices_say(name: Any, tmp_path: Path) -> None:
    entry = find(name)
    more = QUICK.get(name, "")
    graphs = tmp_path / "graphs"

    # A failure is printed as it was drawn: a smaller one would take hundreds of runs to find.
    @settings(few(EXAMPLES), suppress_health_check=list(HealthCheck), phases=[Phase.explicit, Phase.generate])
    @given(
        st.tuples(reports(), reports()),
        st.tuples(ANSWERS, ANSWERS),
        st.integers(1, 40),
        st.sampled_from(entry.robust),
    )
    def check(said: Any, answers: Any, killed_at: Any, combine: Any) -> None:
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        share_artifacts(folder, graphs)
        # Devices without data are not waited for: whoever says so might as well have stayed away.
        devices = len(HONEST) + sum(bool(one.data.samples or one.data.input_shape) for one in said)
        about = {"folder": folder, "rounds": ROUNDS, "devices": devices, "model": entry.model, "method": name}
        text = CONFIG.format(**about, combine=combine, more=more)
        config = config_from_text(text, where="test")
        fleet: Any = {
            "reports": dict.fromkeys(HONEST, report(data=USUAL)) | dict(zip(OTHERS, said, strict=True)),
            "answers": dict(zip(OTHERS, map(answering, answers), strict=True)),
            "public": PUBLIC,
        }
        try:
            outcome = conduct_any(config, text, observer=die_at(killed_at), **fleet)
        except Killed:
            outcome = conduct_any(config, text, **fleet)
        assert len(outcome.metrics) == ROUNDS
        assert state_problem(MethodState.read(final_state(folder))) is None
        shutil.rmtree(folder)

    check()
