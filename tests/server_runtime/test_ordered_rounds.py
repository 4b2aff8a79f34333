"""A server that takes a run over goes on with as many rounds as people ordered, not as its own file says."""

from pathlib import Path

from fedwright.server_runtime.rounds.store.base import RunRecord
from fedwright.server_runtime.run import as_ordered
from helpers.simulation import make_config


def test_what_was_ordered_outlives_a_take_over(tmp_path: Path) -> None:
    config, text = make_config(tmp_path, rounds=100)
    known = RunRecord("run", text, None, "identity", "served", 7)

    assert as_ordered(config, text, known).run.rounds == 7
    # Somebody who changed the file means what it says now.
    assert as_ordered(config, text + "# more", known).run.rounds == 100
    assert as_ordered(config, text, None).run.rounds == 100
