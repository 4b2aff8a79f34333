"""A run is taken back to a round whose state was kept, and goes on from there as if the others had not been."""

from pathlib import Path
from typing import Any

import pytest

from fedwright.protocol.blobs import BlobStore
from fedwright.protocol.errors import ConfigError
from fedwright.protocol.link.memory import MemoryBroker
from fedwright.server_runtime.rounds import events
from fedwright.server_runtime.rounds.spoilt_rounds import best_round
from fedwright.server_runtime.rounds.store.sqlite import SqliteRoundStore
from fedwright.server_runtime.run import execute
from fedwright.server_runtime.run_folder.folder import RunFolder, claim_folder
from fedwright.server_runtime.run_folder.rollback import rollback
from fedwright.server_runtime.run_reader import open_run
from fedwright.simulation.dealing import deal
from helpers.resume import final_state
from helpers.simulation import local_data, make_config, run_agents

ROUNDS, KEPT = 4, 2


@pytest.fixture
def done(tmp_path: Path) -> Any:
    """A run of four rounds whose last two states are kept, its broker and a way to go on with it."""
    config, text = make_config(
        tmp_path, rounds=ROUNDS, run={"keep_states": KEPT}, fleet={"devices": 2}, simulate={"devices": 2, "rows": 80}
    )
    broker = MemoryBroker()
    heard: list[events.Event] = []

    def go_on() -> list[events.Event]:
        heard.clear()
        link = broker.link("server")
        execute(config, text, link=link, observer=heard.append)
        link.close()
        return list(heard)

    with run_agents(broker, tmp_path, local_data(deal(config.simulate, seed=config.run.seed))):
        go_on()
        yield go_on


def kept_rounds(folder: Path) -> tuple[int, ...]:
    """The rounds that a run can go back to: those before the last that were asked for, and the best one."""
    store = SqliteRoundStore(folder / "run/rounds.sqlite")
    best = best_round(store.closed())
    store.close()
    assert best is not None
    assert 0 < best < ROUNDS
    return tuple(sorted({best, *range(ROUNDS - KEPT + 1, ROUNDS)}))


def test_a_run_that_was_rolled_back_comes_to_the_same_end_again(done: Any, tmp_path: Path) -> None:
    before = final_state(tmp_path)
    assert open_run(tmp_path / "run").kept == kept_rounds(tmp_path)

    assert rollback(tmp_path / "run", ROUNDS - 1) == 1
    past = open_run(tmp_path / "run")
    assert (past.rounds_done, past.complete) == (ROUNDS - 1, False)
    heard = done()

    # The devices trained again: their journals do not take the round's tasks for those that they had done.
    assert [event.round for event in heard if isinstance(event, events.RoundClosed)] == [ROUNDS]
    assert final_state(tmp_path) == before
    assert open_run(tmp_path / "run").complete


@pytest.mark.parametrize("number", [0, ROUNDS, ROUNDS + 1, -1])
def test_a_round_that_was_not_kept_is_refused_with_those_that_were(done: Any, tmp_path: Path, number: Any) -> None:
    *earlier, last = kept_rounds(tmp_path)
    kept = f"rounds {', '.join(map(str, earlier))}, {last}" if earlier else f"round {last}"
    with pytest.raises(ConfigError, match=rf"cannot be rolled back to round {number}; it can go back to {kept}$"):
        rollback(tmp_path / "run", number)


def test_a_run_at_work_is_left_alone(done: Any, tmp_path: Path) -> None:
    with claim_folder(RunFolder(tmp_path / "run")), pytest.raises(ConfigError, match="another server is at work"):
        rollback(tmp_path / "run", ROUNDS - 1)


def test_no_more_states_are_kept_than_asked_for_and_the_best(done: Any, tmp_path: Path) -> None:
    store, blobs = SqliteRoundStore(tmp_path / "run/rounds.sqlite"), BlobStore(tmp_path / "run/blobs")
    kept = [closed.position.round for closed in store.closed() if blobs.has(closed.state)]
    store.close()
    assert kept == [*kept_rounds(tmp_path), ROUNDS]
