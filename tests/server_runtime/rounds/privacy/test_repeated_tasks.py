"""A device that does its task of a round once more tells once more, and is asked only where it can afford that."""

from pathlib import Path
from typing import Any

import pytest

from fedwright.protocol.messages import Recipe
from fedwright.server_runtime.config import config_from_text
from fedwright.server_runtime.methods.base import Assignment
from fedwright.server_runtime.rounds import events
from fedwright.server_runtime.rounds.privacy.accounting import epsilon
from fedwright.server_runtime.rounds.privacy.ledger import LEDGER, Ledger
from fedwright.server_runtime.rounds.privacy.round_privacy import NoPrivacy, privacy_of
from fedwright.server_runtime.spec import ModelSpec, Structure
from helpers.fleet import report

KINDS = {
    "distributed": '[privacy]\nkind = "distributed"\nnoise_multiplier = 4.0\n[update]\nsecure = true\n',
    "example": '[privacy]\nkind = "example"\nnoise_multiplier = 4.0\n',
}
REPORTS = {"a": report(), "b": report()}
WORK: Any = Assignment(Structure(ModelSpec("mlp", (4,), 2)), Recipe(8, 0.1, 1))


def begun(folder: Path, kind: str, limit: float | None = None) -> NoPrivacy:
    text = KINDS[kind] + '[method]\nname = "fedavg"\n'
    if limit is not None:
        text = text.replace("noise_multiplier", f"epsilon = {limit}\nnoise_multiplier")
    config = config_from_text(text, where="test")
    privacy = privacy_of(config, folder, central=None, rollbacks=0, observer=events.ignore)
    privacy.spend(1, REPORTS, {"a": WORK, "b": WORK})
    return privacy


@pytest.mark.parametrize("kind", KINDS)
def test_each_time_is_counted_once_also_after_a_kill(tmp_path: Path, kind: str) -> None:
    for _ in range(2):
        privacy = begun(tmp_path, kind)
        assert privacy.repeat(1, ["a"], 1)
    assert privacy.repeat(1, ["a"], 2)
    assert privacy.repeat(1, ["a", "b"], 1)

    told = Ledger(tmp_path / LEDGER).by_device()
    assert (len(told["a"]), len(told["b"])) == (3, 2)


@pytest.mark.parametrize("kind", KINDS)
def test_who_cannot_afford_it_is_not_asked(tmp_path: Path, kind: str) -> None:
    (tmp_path / "once").mkdir()
    begun(tmp_path / "once", kind)
    once = Ledger(tmp_path / "once" / LEDGER).by_device()["a"]
    limit = epsilon([*once, *once], 1e-5, whole=kind == "distributed") + 1e-6
    privacy = begun(tmp_path, kind, limit)

    assert [privacy.repeat(1, ["a"], count) for count in (1, 2)] == [True, False]
    assert len(Ledger(tmp_path / LEDGER).by_device()["a"]) == 2


def test_a_run_that_hides_nothing_asks_as_often_as_it_likes() -> None:
    assert NoPrivacy().repeat(1, ["a"], 9)
