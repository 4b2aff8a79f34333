"""Every robust choice keeps the methods that offer it from following a hostile device; the others refuse it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedwright.protocol import tensors
from fedwright.protocol.artifact import CLASS_COUNTS
from fedwright.protocol.errors import ConfigError
from fedwright.protocol.messages import Refusal
from fedwright.server_runtime.blocks.robust import ALL
from fedwright.server_runtime.config import config_from_text
from fedwright.server_runtime.methods.registry import METHODS
from fedwright.server_runtime.public_data.examples import PublicData
from helpers.any_fleet import QUICK, STATS, conduct_any, share_artifacts, usual_summary
from helpers.fleet import report
from helpers.resume import final_state

SHAPE, CLASSES = (1, 8, 8), 4
DEVICES = "abcdefg"
PUBLIC = PublicData(np.random.default_rng(3).random((20, *SHAPE), np.float32), np.arange(20) % CLASSES)
# What each device says of its data: the same, so that hypernetworks write them one model.
TOLD = report(data=usual_summary(SHAPE, CLASSES))
CONFIG = """
[run]
name = "run"
folder = "{folder}"
rounds = {rounds}
[fleet]
devices = 7
[model]
model = "{model}"
[method]
name = "{method}"
{more}
[update]
combine = "{combine}"
trim_ratio = 0.25
norm_factor = 0
[export]
global_model = false
"""
# Adapters are written once the base is frozen, after the first of two rounds.
MORE = QUICK | {"hyperflora": "pretrain_rounds = 1\npairs = false", "adapters-private": "pretrain_rounds = 2"}
OFFERS = [
    (name, kind)
    for name, entry in sorted(METHODS.items())
    for kind in entry.robust
    if kind not in ("mean", "norm_bound")
]


def learnt(values: Any) -> list[str]:
    """The tensors that hold what a device learnt or measured, and no counts."""
    return [name for name, value in values.items() if value.dtype.kind == "f" and name != CLASS_COUNTS]


def alike(task: Any, values: Any) -> Any:
    """Nearly the same change of every entry on every device."""
    rng = np.random.default_rng(task.recipe.seed)
    changed = {name: 0.01 + 0.00002 * rng.standard_normal(values[name].shape) for name in learnt(values)}
    return STATS, values | {name: value.astype(np.float32) for name, value in changed.items()}


def hostile(task: Any, values: Any) -> Any:
    """Ten times an honest change, the other way round."""
    stats, honest = alike(task, values)
    return stats, honest | {name: -10 * honest[name] for name in learnt(honest)}


def absent(task: Any, values: Any) -> Any:
    """No change at all."""
    return Refusal(task.task, "failed", "no")


def final(folder: Path, name: str, combine: str, graphs: Path, *, odd: Any) -> dict[str, np.ndarray]:
    """The state after two rounds."""
    share_artifacts(folder, graphs)
    entry = METHODS[name]
    text = CONFIG.format(
        folder=folder, rounds=2, model=entry.model, method=name, combine=combine, more=MORE.get(name, "")
    )
    answers: Any = dict.fromkeys(DEVICES, alike) | {"b": odd}
    conduct_any(
        config_from_text(text, where="test"),
        text,
        reports=dict.fromkeys(DEVICES, TOLD),
        answers=answers,
        public=PUBLIC,
    )
    return tensors.load(final_state(folder))


def apart(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> float:
    """Sum of all distances."""
    return sum(
        float(np.abs(one[name] - other[name]).sum())
        for name in one
        if name in other and one[name].dtype.kind == "f" and "/b/" not in name
    )


@pytest.mark.parametrize("name", sorted({name for name, _ in OFFERS}))
def test_what_is_offered_keeps_a_hostile_device_out(name: str, tmp_path: Path) -> None:
    graphs = tmp_path / "graphs"
    usual = final(tmp_path / "usual", name, "mean", graphs, odd=absent)
    harm = apart(final(tmp_path / "mean", name, "mean", graphs, odd=hostile), usual)
    for kind in METHODS[name].robust[2:]:
        left = apart(final(tmp_path / kind, name, kind, graphs, odd=hostile), usual)
        assert left < 0.5 * harm, f"{kind}: {left:.3f} of {harm:.3f}"


@pytest.mark.parametrize("name", sorted(METHODS))
def test_other_choices_are_refused_in_a_sentence_that_names_methods_which_have_them(name: str, tmp_path: Path) -> None:
    for kind in set(ALL) - set(METHODS[name].robust):
        text = CONFIG.format(folder=tmp_path, rounds=1, model=METHODS[name].model, method=name, combine=kind, more="")
        with pytest.raises(ConfigError, match=f"update.combine is '{kind}' but {name} .* it works with: .*fedavg"):
            config_from_text(text, where="test")
