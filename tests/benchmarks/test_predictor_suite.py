"""The suite `predictor`: its scores by hand, and one small case measured from end to end."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from fedwright.benchmarks.suites import predictor as suite
from fedwright.benchmarks.suites.predictor import Pass
from fedwright.device_runtime.profiler.measure import ProbeTime
from fedwright.protocol.predictor import expected_bytes, need_bytes
from helpers.present import present


def test_shares_by_hand() -> None:
    found = suite._shares(np.array([1.05, 0.85, 1.5, 2.0]), np.array([1.0, 1.0, 1.0, 2.0]))

    # Errors of 5, 15, 50 and 0 percent.
    assert found == {"within 10 %": 0.5, "within 20 %": 0.75, "mean error": pytest.approx(0.175)}


def test_every_promise_is_a_check_that_can_fail() -> None:
    good = {"within 10 %": 0.8, "within 20 %": 0.95, "mean error": 0.05}
    bad = {"within 10 %": 0.1, "within 20 %": 0.2, "mean error": 0.5}
    fits = [{"refused at the limit": False, "predicted / peak": 1.1, "admitted / peak": 1.3}]
    dies = [{"refused at the limit": True, "predicted / peak": 0.7, "admitted / peak": 0.9}]
    others = {"FLOPs line": bad, "random forest": bad}, {"FLOPs line": good, "random forest": good}

    holds = suite._checks({"predictor": good, suite.AS_A_DEVICE: good, **others[0]}, good, fits, 20.0)
    fails = suite._checks({"predictor": bad, suite.AS_A_DEVICE: bad, **others[1]}, good, dies, 100.0)

    assert all(check["holds"] for check in holds)
    assert [check["name"] for check in fails if check["holds"]] == [
        "steps within 20 %, two passes as on a device",
        "steps within 10 %, two passes as on a device",
        "the same twice within 20 % (the ceiling)",
        "the same twice within 10 % (the ceiling)",
        "models admitted that a limit of just that much stops",
    ]


MEASURED = {"refused at the limit": False, "predicted / peak": 1.0, "admitted / peak": 1.3}


def passes_of(*times: float) -> list[Pass]:
    probe = ProbeTime("p", 1, [], 1.0)
    return [suite.Pass([probe], [[time] * len(suite.BATCHES)], 2.0) for time in times]


def test_the_best_of_every_other_pass_stands_against_the_best_of_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "fit", lambda probes: ({}, 0.1))
    for name in ("_flops_line", "_forest"):
        monkeypatch.setattr(suite, name, lambda probes, cases: np.ones(len(cases)))
    monkeypatch.setattr(suite, "_memory", lambda cases: [MEASURED])
    artifact = SimpleNamespace(manifest=SimpleNamespace(work={}))

    found = suite.score([("m", 1.0, cast(Any, artifact))], passes_of(5.0, 4.0, 3.0, 3.6))

    # 3.0 of the first and third against 3.6 of the second and fourth: 17 % apart.
    assert [row["measured ms"] for row in found["tables"]["steps"]] == [3000.0] * 3
    twice = found["tables"]["methods"][-1]
    assert (twice["within 10 %"], twice["within 20 %"]) == (0.0, 1.0)
    assert found["tables"]["calibration"]["seconds"] == 8.0


@pytest.mark.slow
def test_the_memory_of_a_small_model_is_measured_in_a_process_of_its_own() -> None:
    [(name, width, artifact)] = suite._build("lenet", (0.5,))

    case, need = suite.Case(name, width, 16, artifact, (1.0, 1.0)), need_bytes(artifact.manifest, 16)

    peak = present(suite._peak_bytes(case, need))

    assert suite._peak_bytes(case, need // 8) is None
    assert 0.6 < expected_bytes(artifact.manifest, 16) / peak < 1.6
    assert need_bytes(artifact.manifest, 16) > peak
