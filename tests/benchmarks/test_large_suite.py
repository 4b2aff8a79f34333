"""`fedwright bench large` on a far smaller model: its base lies in a file, its figures are those of a process."""

import pytest
import torch

from fedwright.benchmarks.harness import large_models
from fedwright.benchmarks.suites import large


def test_four_bits_take_less_than_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_models, "VOCABULARY", 500)
    monkeypatch.setattr(large_models, "make_quarter", lambda **_: large_models.Transformer(256, 2, 4))

    made = {kind: large.prepare("make_quarter", kind) for kind in ("float32", "int4")}
    found = large.measure(made["int4"], batch=1)

    assert made["int4"].frozen_bytes < 0.25 * made["float32"].frozen_bytes
    assert set(made["int4"].weights) == {n for n in made["int4"].weights if "lora" in n or n.startswith("head")}
    assert 20e6 < found["peak_bytes"] < 400e6
    assert torch.isfinite(torch.tensor(found["loss"]))


def test_a_peak_beyond_the_promise_is_told() -> None:
    rows = [
        {"base": kind, "peak MB": peak, "predicted MB": 300.0}
        for kind, peak in (("float32", 900), ("int8", 401), ("int4", 300))
    ]

    found = {entry["name"]: entry["holds"] for entry in large._checks(rows, whole=True)}

    assert not found["peak with a base of int8, MB"]
    assert found["peak with a base of int4, MB"]
    assert found["peak with int4 over float32"]
