"""One config served more than once over a real broker, by devices that stay, come back or sit behind an edge."""

import json
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from fedwright.cli.main import main
from fedwright.device_runtime.emulate.fleet import EmulatedFleet
from fedwright.protocol.link.broker import Broker
from fedwright.server_runtime import run as runs
from fedwright.server_runtime.config import RunConfig
from fedwright.server_runtime.rounds import events
from fedwright.server_runtime.rounds.store.base import RunRecord
from fedwright.server_runtime.rounds.store.sqlite import SqliteRoundStore
from fedwright.server_runtime.run import RunOutcome
from fedwright.simulation.dealing import deal
from fedwright.simulation.edged_fleet import in_turn
from helpers.data_files import save_points
from helpers.edges import run_edges
from helpers.present import present
from helpers.resume import Killed, Links, die_after, final_state, state_of
from helpers.served import served_config, start_agents
from helpers.simulation import local_data, make_config, run_agents

pytestmark = pytest.mark.broker


def record_of(folder: Path) -> RunRecord:
    store = SqliteRoundStore(folder / "rounds.sqlite")
    try:
        return present(store.run())
    finally:
        store.close()


@pytest.mark.slow
def test_living_devices_serve_a_config_again_after_its_folder_was_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    identities, models = set(), []
    with Broker() as broker, EmulatedFleet(tmp_path / "logs") as fleet:
        fleet_lines = "devices = 2\njoin_timeout_s = 60\ndeadline_s = 20"
        (tmp_path / "run.toml").write_text(served_config(broker.url, fleet=fleet_lines))
        for seed, device in enumerate(("a", "b")):
            save_points(tmp_path / f"{device}.npz", seed=seed)
        start_agents(fleet, broker.url, tmp_path, {"a": "npz:a.npz", "b": "npz:b.npz"})
        for _ in range(2):
            shutil.rmtree(tmp_path / "runs", ignore_errors=True)
            assert main(["server", "run", "run.toml", "--json", "result.json"]) == 0
            result = json.loads((tmp_path / "result.json").read_text())
            assert (result["complete"], [metrics["updates"] for metrics in result["metrics"]]) == (True, [2, 2])
            identities.add(record_of(tmp_path / "runs/night").identity)
            models.append(state_of(tmp_path / "runs/night"))
        assert main(["server", "run", "run.toml"]) == 0
        complete = capsys.readouterr().out
        assert main(["server", "run", "run.toml", "--rounds", "3"]) == 0
        longer = record_of(tmp_path / "runs/night")
        assert main(["server", "resume", "runs/night", "--rounds", "2"]) == 1
        shorter = capsys.readouterr().err
        assert main(["server", "run", "run.toml", "--anew"]) == 0
        assert main(["server", "status", "runs/night.1"]) == 0
        aside = capsys.readouterr().out
        logs = "".join(path.read_text() for path in (tmp_path / "logs").iterdir())

    assert len(identities) == 2
    # Who the run is does not enter into what it learns.
    assert models[0] == models[1]
    assert (
        "runs/night is complete with 2 rounds; give it more with `fedwright server run run.toml --rounds 4`, or start "
        "anew with `fedwright server run run.toml --anew` (this run is kept) or another run.name"
    ) in complete
    assert (longer.identity in identities, longer.rounds) == (True, 3)
    assert "has done 3 rounds, which cannot be taken back to 2" in shorter
    assert "runs/night.1: a run over a broker, fedavg, 3 of 3 rounds, complete" in aside
    assert state_of(tmp_path / "runs/night") == models[0]
    assert "evaluation after round 2: task" in logs
    assert "round 4" not in logs


def serve(links: Links, config: RunConfig, text: str, *, observer: Callable[..., Any] = events.ignore) -> RunOutcome:
    """One life of a server."""
    link = links.link("server")
    try:
        return runs.execute(config, text, link=link, observer=observer)
    finally:
        link.close()


@pytest.mark.parametrize("edges", [0, 1], ids=["straight", "behind an edge"])
def test_devices_that_come_back_serve_the_next_run_of_the_same_name(tmp_path: Path, edges: int) -> None:
    """The second run is killed while its tasks are out, and its folder lost; agents start again, an edge stays."""
    config, text = make_config(
        tmp_path, rounds=2, fleet={"deadline_s": 20, "join_timeout_s": 60}, update={"codec": "int8"}
    )
    data = local_data(deal(config.simulate, seed=config.run.seed))
    fleets = in_turn(list(data), edges) if edges else {}
    states = []
    with Broker() as broker, ExitStack() as stack:
        links = Links(broker.url)
        stack.enter_context(run_edges(links, tmp_path / "edges", *sorted(set(fleets.values()))))
        for killed in (False, True, False):
            with run_agents(links, tmp_path / "devices", data, fleets=fleets):
                if killed:
                    with pytest.raises(Killed):
                        serve(links, config, text, observer=die_after(1))
                else:
                    outcome = serve(links, config, text)
                    assert {record.rounds for record in outcome.devices.values()} == {2}
                    states.append(final_state(tmp_path))
            shutil.rmtree(tmp_path / "run")

    # Nothing that a run left on its devices, such as what rounding left out, is added to the next.
    assert states[0] == states[1]
