"""Central privacy holds with the methods that offer it: a clipped voice per device, and nothing goes past the mean."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedwright.protocol import tensors
from fedwright.protocol.errors import ConfigError
from fedwright.server_runtime.blocks.private_mean import PrivateMean
from fedwright.server_runtime.config import config_from_text
from fedwright.server_runtime.methods.private_kinds import CENTRAL
from fedwright.server_runtime.methods.registry import METHODS
from helpers.any_fleet import STATS, conduct_any, share_artifacts, usual_summary
from helpers.fleet import report
from helpers.resume import final_state

SHAPE, CLASSES = (1, 8, 8), 4
DEVICES = "abcd"
TOLD = report(data=usual_summary(SHAPE, CLASSES))
CONFIG = """
[run]
name = "run"
folder = "{folder}"
rounds = 1
[fleet]
devices = 4
[model]
model = "{model}"
[method]
name = "{method}"
[privacy]
kind = "central"
noise_multiplier = 1.0
[update]
evaluate = false
[export]
global_model = false
"""


def odd(task: Any, values: Any) -> Any:
    """Another change, other samples and other losses than an honest device has."""
    changed = {name: (value + 1).astype(value.dtype) for name, value in values.items()}
    return type(STATS)(
        samples=7, steps=3, train_s=1.0, cpu_s=1.0, peak_rss_bytes=1, loss_first=9.0, loss_last=8.0
    ), changed


def final(folder: Path, name: str, graphs: Path, answers: dict[str, Any]) -> dict[str, np.ndarray]:
    share_artifacts(folder, graphs)
    text = CONFIG.format(folder=folder, model=METHODS[name].model, method=name)
    conduct_any(config_from_text(text, where="test"), text, reports=dict.fromkeys(DEVICES, TOLD), answers=answers)
    return tensors.load(final_state(folder))


@pytest.mark.parametrize("name", CENTRAL)
def test_nothing_of_an_update_reaches_the_model_but_through_one_mean(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    added: Counter[int] = Counter()
    add = PrivateMean.add

    def counted(mean: PrivateMean, part: Mapping[str, Any], plan: Any, weight: float) -> None:
        added[id(mean)] += 1
        add(mean, part, plan, weight)

    def unmoved(mean: PrivateMean) -> dict[str, np.ndarray]:
        return {name: np.zeros_like(value) for name, value in mean._current.items()}

    monkeypatch.setattr(PrivateMean, "add", counted)
    monkeypatch.setattr(PrivateMean, "result", unmoved)
    usual = final(tmp_path / "usual", name, tmp_path / "graphs", {})
    calls = sum(added.values())
    other = final(tmp_path / "other", name, tmp_path / "graphs", {"b": odd})

    assert calls == len(DEVICES)
    assert usual.keys() == other.keys()
    for key, value in usual.items():
        np.testing.assert_array_equal(value, other[key], err_msg=key)


@pytest.mark.parametrize("name", sorted(METHODS.keys() - set(CENTRAL)))
def test_other_methods_refuse_it_in_a_sentence_that_names_some_which_do_not(name: str, tmp_path: Path) -> None:
    text = CONFIG.format(folder=tmp_path, model=METHODS[name].model, method=name)
    with pytest.raises(
        ConfigError, match=f"kind 'central' does not work with {name}; choose a method such as .*fedavg"
    ):
        config_from_text(text, where="test")
