"""Rounds through edges end as rounds without: real host, edges and agents over a broker in memory."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedwright.protocol import tensors
from fedwright.protocol.blobs import BlobStore
from fedwright.protocol.link.memory import MemoryBroker, MemoryLink
from fedwright.protocol.uploads import Uploads
from fedwright.server_runtime import run as runs
from fedwright.server_runtime.config import RunConfig
from fedwright.server_runtime.rounds import events
from fedwright.server_runtime.rounds.store.base import Position, Reply
from fedwright.server_runtime.rounds.store.sqlite import SqliteRoundStore
from fedwright.server_runtime.run_model import export_device
from fedwright.simulation.dealing import deal
from fedwright.simulation.edged_fleet import in_turn
from fedwright.simulation.simulate import simulate
from helpers.edges import run_edges
from helpers.present import present
from helpers.simulation import local_data, make_config, run_agents

FEDCONV = dict.fromkeys(("pretrain_epochs", "compress_epochs", "again_epochs", "dilate_epochs", "weigh_epochs"), 1)


def settings(
    folder: Path,
    *,
    edges: int,
    devices: int = 4,
    rounds: int = 2,
    simulate: dict[str, int | str] | None = None,
    **sections: Any,
) -> tuple[RunConfig, str]:
    """A small run whose devices sit behind edges in turn."""
    simulated = {"devices": devices, "evaluate_every": 0, "edges": edges, **(simulate or {})}
    return make_config(folder, rounds=rounds, fleet={"devices": devices}, simulate=simulated, **sections)


def play(
    folder: Path, *, edges: int, grouping: dict[str, Any] | None = None, **given: Any
) -> tuple[dict[str, NDArray[Any]], MemoryLink]:
    """The run by real agents and edges; returns its final state and the host's link."""
    config, text = settings(folder, edges=edges, **given)
    data = local_data(deal(config.simulate, seed=config.run.seed))
    fleets = in_turn(list(data), edges) if edges else {}
    broker = MemoryBroker()
    names = sorted(set(fleets.values()))
    edges_of = run_edges(broker, folder, *names, **(grouping or {}))
    with edges_of, run_agents(broker, folder / "devices", data, fleets=fleets):
        link = broker.link("server")
        outcome = runs.execute(config, text, link=link)
        link.close()
    assert {record.rounds for record in outcome.devices.values()} == {config.run.rounds}
    assert len(outcome.devices) == config.fleet.devices
    return final_state(folder), link


def simulated(folder: Path, *, edges: int, **given: Any) -> dict[str, NDArray[Any]]:
    """The same run in a simulation; returns its final state."""
    simulate(*settings(folder, edges=edges, **given))
    return final_state(folder)


def final_state(folder: Path) -> dict[str, NDArray[Any]]:
    """The last saved state of the run in a folder."""
    store = SqliteRoundStore(folder / "run/rounds.sqlite")
    try:
        return tensors.load(BlobStore(folder / "run/blobs").path(store.closed()[-1].state))
    finally:
        store.close()


def first_replies(folder: Path) -> dict[str, Reply]:
    """The replies of the first round."""
    store = SqliteRoundStore(folder / "run/rounds.sqlite")
    try:
        return store.replies(Position(1, 0))
    finally:
        store.close()


def test_sums_through_edges_end_as_sums_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Masked numbers come in several pieces, which the edges fetch and the host fetches from them."""
    offer = Uploads.offer
    monkeypatch.setattr(Uploads, "offer", lambda own, data, chunk_bytes: offer(own, data, chunk_bytes=4096))
    given: dict[str, Any] = {"update": {"secure": True}, "simulate": {"rows": 120}}
    np.testing.assert_equal(play(tmp_path / "a", edges=2, **given)[0], simulated(tmp_path / "b", edges=0, **given))


@pytest.mark.parametrize(
    "method",
    [
        {"name": "fedavg"},
        {"name": "fedprox"},
        {"name": "heterofl", "masked": False, "levels": {"sizes": [1.0, 0.5]}},
        {"name": "fedrolex", "levels": {"sizes": [0.5]}},
        {"name": "fedconv", "levels": {"sizes": [1.0, 0.5], "choose": "in_turn"}, **FEDCONV},
    ],
    ids=lambda method: method["name"],
)
def test_hierarchical_averages_are_flat_averages(
    tmp_path: Path, method: dict[str, dict[str, list[float] | str] | int | str]
) -> None:
    given: dict[str, Any] = {
        "method": method,
        "public": {"rows": 24},
        "rounds": 1 if method["name"] == "fedconv" else 2,
    }
    flat = simulated(tmp_path / "flat", edges=0, **given)
    state = simulated(tmp_path / "edges", edges=2, **given)

    assert state.keys() == flat.keys()
    # A device behind an edge that pools has the model of its pool as its own.
    for name in (name for name in flat if not name.startswith("own/")):
        np.testing.assert_allclose(state[name], flat[name], rtol=2e-5, atol=2e-6, err_msg=name)
    pooled = [reply.update for reply in first_replies(tmp_path / "edges").values() if present(reply.update).parts]
    assert sorted(len(present(update).parts) for update in pooled) == [2, 2]


@pytest.mark.parametrize("update", [{"codec": "int8"}, {"clip_norm": 0.3}, {"keep_ratio": 0.2}], ids=str)
def test_small_and_clipped_updates_are_pooled_as_they_would_be_averaged(
    tmp_path: Path, update: dict[str, float | str]
) -> None:
    flat = simulated(tmp_path / "flat", edges=0, update=update)
    state = simulated(tmp_path / "edges", edges=2, update=update)

    for name, value in flat.items():
        np.testing.assert_allclose(state[name], value, rtol=1e-4, atol=1e-5, err_msg=name)


def test_asynchronous_rounds_go_through_edges_one_by_one(tmp_path: Path) -> None:
    config, text = settings(tmp_path, edges=1, rounds=3)
    config = replace(config, fleet=replace(config.fleet, buffer=2))
    data = local_data(deal(config.simulate, seed=config.run.seed))
    broker = MemoryBroker()
    fleets = in_turn(list(data), 1)
    with run_edges(broker, tmp_path, "edge-1"), run_agents(broker, tmp_path / "devices", data, fleets=fleets):
        link = broker.link("server")
        outcome = runs.execute(config, text, link=link)
        link.close()

    assert [metrics["updates"] for metrics in outcome.metrics] == [2, 2, 2]


def test_methods_that_need_every_update_get_every_update(tmp_path: Path) -> None:
    flat = simulated(tmp_path / "flat", edges=0, update={"combine": "median"})
    state, _ = play(tmp_path / "edges", edges=2, update={"combine": "median"})

    assert all(np.array_equal(state[name], flat[name]) for name in flat)
    assert not any(present(reply.update).parts for reply in first_replies(tmp_path / "edges").values())


def test_edges_pool_to_the_bytes_of_their_simulation(tmp_path: Path) -> None:
    state, _ = play(tmp_path / "edges", edges=2, devices=5)
    expected = simulated(tmp_path / "simulated", edges=2, devices=5)

    assert all(np.array_equal(state[name], expected[name]) for name in expected)
    sizes = [
        len(update.parts)
        for update in (present(reply.update) for reply in first_replies(tmp_path / "edges").values())
        if update.parts
    ]
    assert sorted(sizes) == [2, 3]
    # The artifact, the state and the evaluated model: nothing of the pools is left.
    assert len(list((tmp_path / "simulated/run/blobs").iterdir())) <= 4


def test_bytes_at_the_host_fall_with_the_number_of_edges(tmp_path: Path) -> None:
    links = {
        edges: play(tmp_path / str(edges), edges=edges, rounds=1, update={"evaluate": False})[1] for edges in (0, 1, 2)
    }

    assert links[1].received_bytes < links[2].received_bytes < links[0].received_bytes / 1.5
    assert links[1].sent_bytes < links[2].sent_bytes < links[0].sent_bytes / 1.5


def test_a_mean_for_each_cluster_is_still_the_mean(tmp_path: Path) -> None:
    flat = simulated(tmp_path / "flat", edges=0)
    state, _ = play(tmp_path / "edges", edges=1, grouping={"cluster": {"exact": 2}})

    for name, value in flat.items():
        np.testing.assert_allclose(state[name], value, rtol=2e-5, atol=2e-6, err_msg=name)
    updates = [present(reply.update) for reply in first_replies(tmp_path / "edges").values()]
    assert [len(update.parts) for update in updates if update.parts] in ([1, 3], [3, 1], [2, 2])


@pytest.mark.parametrize(("devices", "exact"), [(1, 1), (2, 5)], ids=["one device", "more clusters than devices"])
def test_an_edge_makes_do_with_few_devices(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, devices: int, exact: int
) -> None:
    grouping = {"cluster": {"exact": exact}}
    state, _ = play(tmp_path / "edges", edges=1, devices=devices, rounds=1, grouping=grouping)
    flat = simulated(tmp_path / "flat", edges=0, devices=devices, rounds=1)

    for name, value in flat.items():
        np.testing.assert_allclose(state[name], value, rtol=2e-5, atol=2e-6, err_msg=name)
    assert ("5 clusters are wanted but 2 devices answered; each is one" in caplog.text) == (devices == 2)


def test_clusters_of_different_size_teach_each_other_and_the_host_sees_no_features(tmp_path: Path) -> None:
    method = {"name": "heterofl", "masked": False, "levels": {"sizes": [1.0, 0.5]}}
    given: dict[str, Any] = {"method": method, "update": {"class_means": True}, "edges": 1, "rounds": 1}
    folded = {"exchange": "folded"}

    state, _ = play(tmp_path / "edges", grouping={"exchange": {"form": "folded"}}, **given)
    expected = simulated(tmp_path / "simulated", simulate=folded, **given)
    without = simulated(tmp_path / "without", **given)

    assert all(np.array_equal(state[name], expected[name]) for name in expected)
    changed = [name for name in expected if not np.array_equal(expected[name], without[name])]
    assert "head.weight" in changed
    assert sum(len(present(reply.update).parts) for reply in first_replies(tmp_path / "edges").values()) == 4


RATIOS = {"name": "heterofl", "masked": False, "levels": {"sizes": [1.0, 0.5], "choose": "in_turn"}}


@pytest.mark.parametrize("form", ["folded", "eq8"])
def test_an_edge_for_each_ratio_does_what_one_edge_for_all_does(tmp_path: Path, form: str) -> None:
    given: dict[str, Any] = {"method": RATIOS, "update": {"class_means": True}}

    state, _ = play(tmp_path / "edges", edges=2, grouping={"exchange": {"form": form}}, **given)
    apart = simulated(tmp_path / "apart", edges=2, simulate={"exchange": form}, **given)
    together = simulated(tmp_path / "together", edges=1, simulate={"exchange": form}, **given)
    without = simulated(tmp_path / "without", edges=2, **given)

    store = SqliteRoundStore(tmp_path / "edges/run/rounds.sqlite")
    widths = {
        (present(planned.task.pool).edge, planned.assignment.structure.spec.sizes)
        for planned in present(store.plan(Position(1, 0)))
    }
    store.close()
    assert len(widths) == 2
    assert all(np.array_equal(state[name], apart[name]) for name in apart)
    assert all(np.array_equal(apart[name], together[name]) for name in apart)
    assert not np.array_equal(apart["head.weight"], without["head.weight"])


def test_an_edge_that_does_not_exchange_holds_nobody_up(tmp_path: Path) -> None:
    config, text = settings(tmp_path, edges=2, method=RATIOS, update={"class_means": True})
    data = local_data(deal(config.simulate, seed=config.run.seed))
    broker = MemoryBroker()
    folded = run_edges(broker, tmp_path, "edge-1", exchange={"form": "folded"})
    agents = run_agents(broker, tmp_path / "devices", data, fleets=in_turn(list(data), 2))
    with folded, run_edges(broker, tmp_path, "edge-2"), agents:
        link = broker.link("server")
        runs.execute(config, text, link=link)
        link.close()

    without = simulated(tmp_path / "without", edges=2, method=RATIOS, update={"class_means": True})
    state = final_state(tmp_path)
    assert all(np.array_equal(state[name], without[name]) for name in without)


def test_a_simulation_whose_edges_exchange_goes_on_where_it_stopped(tmp_path: Path) -> None:
    class Stopped(Exception):
        pass

    taken = []

    def stop_between_two_edges(event: Any) -> None:
        taken.append(event)
        if sum(isinstance(one, events.UpdateTaken) and one.round == 2 for one in taken) == 2:
            raise Stopped

    given: dict[str, Any] = {"method": RATIOS, "update": {"class_means": True}, "simulate": {"exchange": "eq8"}}
    config, text = settings(tmp_path / "stopped", edges=2, **given)
    with pytest.raises(Stopped):
        simulate(config, text, observer=stop_between_two_edges)
    simulate(config, text)

    expected = simulated(tmp_path / "whole", edges=2, **given)
    state = final_state(tmp_path / "stopped")
    assert all(np.array_equal(state[name], expected[name]) for name in expected)


CONVOLVED = {"name": "fedconv", "levels": {"sizes": [1.0, 0.5], "choose": "in_turn"}, **FEDCONV}


def test_clusters_of_an_edge_are_dilated_by_themselves_at_the_host(tmp_path: Path) -> None:
    given: dict[str, Any] = {"edges": 1, "devices": 6, "method": CONVOLVED, "public": {"rows": 24}, "rounds": 2}
    apart = {"cluster": {"exact": 2}}
    state, _ = play(tmp_path / "edges", grouping=apart, **with_public(tmp_path, given))
    together = simulated(tmp_path / "simulated", **with_public(tmp_path, given))

    updates = [reply.update for reply in first_replies(tmp_path / "edges").values() if present(reply.update).parts]
    names = {present(update).cluster for update in updates}
    assert len(names) == 4
    assert sum(len(present(update).parts) for update in updates) == 6
    kernels = {name.rpartition("/")[2] for name in state if name.startswith("dilate/")}
    # Two clusters of the smaller ratio, each with kernels of its own; without clusters there is one for the ratio.
    assert len(kernels) == 2
    assert kernels <= names
    assert [name for name in together if name.startswith("dilate/")] == ["dilate/width-0.5000"]
    assert not np.array_equal(state["head.weight"], together["head.weight"])


@pytest.mark.parametrize("edges", [0, 1, 2])
def test_an_exchange_trains_on_devices_with_or_without_edges(tmp_path: Path, edges: int) -> None:
    method = {**CONVOLVED, "exchange": True, "exchange_links": 1.0}
    given = with_public(tmp_path, {"edges": edges, "method": method, "rounds": 2})
    state, _ = play(tmp_path / "real", grouping={"cluster": {"most": 2}} if edges else None, **given)
    expected = simulated(tmp_path / "simulated", simulate={"clusters": 2} if edges else None, **given)

    assert state.keys() == expected.keys()
    assert all(np.array_equal(state[name], expected[name]) for name in expected)
    projections = [value for name, value in state.items() if name.startswith("project/")]
    assert projections
    assert all(value.any() for value in projections)
    # Nothing of an exchange is left: artifacts, the states and what is evaluated.
    store = SqliteRoundStore(tmp_path / "simulated/run/rounds.sqlite")
    frozen = {present(planned.task.frozen).sha256 for planned in store.plan(Position(2, 1)) or []}
    store.close()
    assert frozen
    assert not frozen & {path.name for path in (tmp_path / "simulated/run/blobs").iterdir()}


def test_a_server_that_stops_in_an_exchange_ends_the_same(tmp_path: Path) -> None:
    class Stopped(Exception):
        pass

    def stop_in_the_exchange(event: Any) -> None:
        planned.extend([event] if isinstance(event, events.StagePlanned) else [])
        if isinstance(event, events.UpdateTaken) and len(planned) == 4:
            raise Stopped

    planned: list[Any] = []
    method = {**CONVOLVED, "exchange": True, "exchange_links": 1.0}
    given = with_public(tmp_path, {"edges": 2, "method": method, "rounds": 2, "simulate": {"clusters": 2}})
    config, text = settings(tmp_path / "stopped", **given)
    with pytest.raises(Stopped):
        simulate(config, text, observer=stop_in_the_exchange)
    simulate(config, text)

    expected = simulated(tmp_path / "whole", **given)
    state = final_state(tmp_path / "stopped")
    assert state.keys() == expected.keys()
    assert all(np.array_equal(state[name], expected[name]) for name in expected)


def with_public(folder: Path, given: dict[str, Any]) -> dict[str, Any]:
    """The same with a file of labelled examples for the server."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(4)
    np.savez(folder / "public.npz", x=rng.random((40, 1, 8, 8), np.float32), y=np.arange(40) % 10)
    return {**given, "public": {"file": str(folder / "public.npz")}}


def test_a_simulation_with_edges_goes_on_where_it_stopped(tmp_path: Path) -> None:
    class Stopped(Exception):
        pass

    def stop_in_the_second_round(event: Any) -> None:
        if isinstance(event, events.UpdateTaken) and event.round == 2:
            raise Stopped

    config, text = settings(tmp_path / "stopped", edges=2, simulate={"clusters": 2})
    with pytest.raises(Stopped):
        simulate(config, text, observer=stop_in_the_second_round)
    simulate(config, text)

    expected = simulated(tmp_path / "whole", edges=2, simulate={"clusters": 2})
    state = final_state(tmp_path / "stopped")
    assert all(np.array_equal(state[name], expected[name]) for name in expected)


@pytest.mark.parametrize("edges", [0, 2])
def test_personal_layers_never_leave_their_device_with_or_without_edges(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, edges: int
) -> None:
    method = {"name": "fedconv", "levels": {"sizes": [1.0, 0.5], "choose": "in_turn"}, "personal_layers": ["head"]}
    rng = np.random.default_rng(4)
    (tmp_path / "real").mkdir()
    np.savez(tmp_path / "public.npz", x=rng.random((40, 1, 8, 8), np.float32), y=np.arange(40) % 10)
    given: dict[str, Any] = {
        "edges": edges,
        "method": {**method, **FEDCONV},
        "public": {"file": str(tmp_path / "public.npz")},
        "update": {"clip_norm": 5.0},
    }

    state, _ = play(tmp_path / "real", **given)
    expected = simulated(tmp_path / "simulated", **given)

    assert all(np.array_equal(state[name], expected[name]) for name in expected)
    layers = {}
    for path in sorted((tmp_path / "real/devices").rglob("personal")):
        layers[path.parent.name] = tensors.load(path)
        twin = tensors.load(tmp_path / "simulated/run/devices" / path.parent.name / "personal")
        assert all(np.array_equal(layers[path.parent.name][name], twin[name]) for name in twin)
    assert len(layers) == 4
    assert all(own.keys() == {"head.weight", "head.bias"} for own in layers.values())
    export_device(settings(tmp_path / "real", **given)[0], "device-1", tmp_path / "model.onnx")
    assert "head.weight, head.bias never left device-1; the exported model has the server's own" in caplog.text
