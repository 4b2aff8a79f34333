"""On a Ray cluster of two nodes: the same bytes as in one process, whoever is killed, and one sentence for the rest."""

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from ray import cloudpickle
from ray.cluster_utils import Cluster

from fedwright.benchmarks.harness.cluster import on_cluster
from fedwright.benchmarks.harness.suite import Job, run_job, run_jobs
from fedwright.protocol.errors import ConfigError, EngineError
from fedwright.server_runtime.config_sections.engine import EngineSection
from fedwright.server_runtime.engine import cluster as clusters
from fedwright.server_runtime.engine.inline import InlineExecutor
from fedwright.server_runtime.rounds import events
from fedwright.simulation.simulate import simulate
from helpers.postgres import running_postgres
from helpers.resume import final_state
from helpers.s3 import BUCKET, running_s3
from helpers.simulation import make_config

MEMORY_BYTES = 80 * 1024**2


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A cluster of two nodes with one CPU each."""
    # Workers cannot import a test.
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
    node: dict[str, Any] = {"num_cpus": 1, "object_store_memory": MEMORY_BYTES}
    with pytest.MonkeyPatch.context() as patch, clusters.own_handlers():
        for name, value in clusters.SETTINGS.items():
            patch.setenv(name, value)
        cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
        try:
            cluster.add_node(**node)
            yield cluster.address
        finally:
            ray.shutdown()
            cluster.shutdown()  # type: ignore[no-untyped-call]


@pytest.fixture(scope="module")
def joined(address: str) -> Iterator[EngineSection]:
    """The cluster, with this process a part of it."""
    section = EngineSection("ray", address)
    with clusters.connected(section):
        yield section


def test_a_cluster_of_other_versions_is_told_in_one_sentence(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.__version__", "2.0.0")

    with (
        pytest.raises(EngineError, match=r"runs other versions: .*2\.0\.0.*; install the same$"),
        clusters.connected(EngineSection("ray", address)),
    ):
        pass


@pytest.fixture(params=["here", "ray"])
def engine(request: pytest.FixtureRequest, joined: EngineSection) -> Iterator[Executor]:
    """Every engine, with workers that have begun."""
    del joined
    if request.param == "here":
        begin(1)
        yield InlineExecutor()
        return
    from fedwright.server_runtime.engine.ray_executor import RayExecutor

    with RayExecutor(begin=(begin, (1,))) as executor:
        yield executor


def begin(times: int) -> None:
    """What a worker does first."""
    sys.modules["begun"] = times  # type: ignore[assignment]


def counted(number: int) -> tuple[int, int]:
    """What was asked for, and what the worker began with."""
    if number < 0:
        raise ConfigError(f"{number} is below 0; take more")
    return number, sys.modules["begun"]  # type: ignore[return-value]


def test_results_keep_their_order_and_errors_their_words(engine: Executor) -> None:
    assert list(engine.map(counted, range(40))) == [(number, 1) for number in range(40)]
    with pytest.raises(ConfigError, match="-1 is below 0; take more"):
        engine.submit(counted, -1).result()


@pytest.mark.usefixtures("joined")
def test_what_a_lost_or_slow_worker_did_is_done_by_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedwright.server_runtime.engine import ray_executor

    monkeypatch.setattr(ray_executor, "SLOW_S", 0.4)
    with ray_executor.RayExecutor() as executor:
        list(executor.map(counted_once, range(4)))
        lost = executor.submit(second_time, tmp_path / "lost", die)
        slow = executor.submit(second_time, tmp_path / "slow", lambda: wait_for(tmp_path / "go"))

        assert lost.result() == slow.result() == "done"
        (tmp_path / "go").touch()
        with pytest.raises(EngineError, match="3 workers died at the same call, as they do where memory runs out"):
            executor.submit(die).result()


def counted_once(number: int) -> int:
    """Nothing much."""
    return number


def second_time(mark: Path, first: Any) -> str:
    """Do something else when this is called for the first time."""
    if not mark.exists():
        mark.touch()
        first()
    return "done"


def die() -> None:
    """Be lost without a word."""
    os.kill(os.getpid(), 9)


def wait_for(mark: Path) -> None:
    """Wait until somebody is done."""
    until = time.monotonic() + 60
    while not mark.exists() and time.monotonic() < until:
        time.sleep(0.05)


@pytest.mark.parametrize(
    "sections",
    [
        {"update": {"codec": "int8"}, "method": {"name": "head-private"}},
        {"update": {"secure": True}},
    ],
    ids=["residuals and personal layers", "secure sums"],
)
def test_a_simulation_ends_with_the_same_bytes_although_a_worker_is_killed(
    tmp_path: Path, joined: EngineSection, sections: Any
) -> None:
    killed: list[int] = []

    def kill(event: events.Event) -> None:
        if isinstance(event, events.UpdateTaken) and not killed:
            killed.append(seats()[0])
            os.kill(killed[0], 9)

    local = simulate(*make_config(tmp_path / "local", **sections))
    remote = {"kind": "ray", "address": joined.address}
    spread = simulate(*make_config(tmp_path / "ray", engine=remote, **sections), observer=kill)

    assert killed
    assert final_state(tmp_path / "ray") == final_state(tmp_path / "local")
    assert spread.evaluations == local.evaluations


def seats() -> list[int]:
    """Processes of the cluster that devices' work is done in."""
    found = []
    for process in psutil.Process().children(recursive=True):
        # One that nobody needs may end meanwhile.
        with contextlib.suppress(psutil.NoSuchProcess):
            found += [process.pid] if process.name().startswith("ray::Seat") else []
    return found


EPOCHS = {f"{what}_epochs": 1 for what in ("pretrain", "compress", "again", "dilate", "weigh")}
CLUB = {"own": {"models": ["cnn-small", "mlp"]}, "most": 3, "finalists": 2, "tune_epochs": 1, "rows": 32}
SERVER_WORK: dict[str, dict[str, Any]] = {
    "fedconv": {"method": {"name": "fedconv", **EPOCHS}, "public": {"rows": 40}},
    "pfedclub": {"method": {"name": "pfedclub", **CLUB}, "public": {"rows": 40}},
    "framp": {"method": {"name": "framp"}},
}


@pytest.mark.parametrize("name", SERVER_WORK)
def test_the_servers_own_work_is_done_by_workers_with_the_same_bytes(
    tmp_path: Path, joined: EngineSection, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedwright.server_runtime.engine.ray_executor import RayExecutor

    monkeypatch.setattr("fedwright.server_runtime.blocks.hypernet.BATCH", 2)
    given: list[Any] = []
    submit = RayExecutor.submit

    def noted(self: RayExecutor, fn: Any, *args: Any) -> Any:
        given.append(args)
        return submit(self, fn, *args)

    monkeypatch.setattr(RayExecutor, "submit", noted)
    sections = {"simulate": {"devices": 3, "rows": 120}, **SERVER_WORK[name]}
    local = simulate(*make_config(tmp_path / "local", **sections))
    ends = []
    for workers in workers_of(name):
        remote = {"kind": "ray", "address": joined.address, "workers": workers}
        spread = simulate(*make_config(tmp_path / str(workers), engine=remote, **sections))
        ends.append((final_state(tmp_path / str(workers)), spread.evaluations))

    assert all(end == (final_state(tmp_path / "local"), local.evaluations) for end in ends)
    assert {work.__name__ for _, work, *_ in filter(is_server_work, given)} >= WORK_OF[name]


def workers_of(name: str) -> list[int]:
    """One worker is enough to be tried once."""
    return [1, 2] if name == "framp" else [2]


def is_server_work(args: tuple[Any, ...]) -> bool:
    """Whether a call is given threads, a function and what that takes."""
    return len(args) > 2 and callable(args[1])


# The pieces by which each method's work is given away; graphs of several structures are built by all of them.
WORK_OF = {
    "fedconv": {"_packed", "_tuned_row"},
    "pfedclub": {"_packed", "teachers_of"},
    "framp": {"_shard", "emission_of"},
}


@pytest.mark.usefixtures("joined")
def test_a_worker_has_its_share_of_its_machines_gpus(tmp_path: Path) -> None:
    from fedwright.server_runtime.engine.places import Place, worker_places

    nodes = [
        {"NodeID": "plain", "Alive": True, "Resources": {"CPU": 2.0}},
        {"NodeID": "dead", "Alive": False, "Resources": {"CPU": 8.0}},
        {"NodeID": "fast", "Alive": True, "Resources": {"CPU": 3.0, "GPU": 1.0}},
    ]

    assert worker_places(nodes, None) == [Place("fast", 0.3333)] * 3 + [Place("plain")] * 2
    assert worker_places(nodes, 4) == [Place("fast", 0.3333)] * 3 + [Place("plain")]


def test_simulations_of_a_suite_are_done_by_workers_with_the_same_figures(joined: EngineSection) -> None:
    jobs = [
        Job("one", seed, {"method": {"name": "fedavg"}, "run": {"rounds": 1}, "simulate": {"devices": 2, "rows": 80}})
        for seed in (1, 2)
    ]

    with on_cluster(joined.address):
        spread = run_jobs(jobs)

    here = [run_job(job) for job in jobs]
    assert [one.seed for one in spread] == [1, 2]
    assert [one.evaluations for one in spread] == [one.evaluations for one in here]


def test_postgresql_s3_and_ray_end_with_the_bytes_of_sqlite_a_folder_and_one_process(
    tmp_path: Path, joined: EngineSection, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_postgres() as database, running_s3(tmp_path) as s3:
        s3.enter(monkeypatch)
        store = {"rounds": database.url, "blobs": f"s3://{BUCKET}/runs"}
        engine = {"kind": "ray", "address": joined.address}
        spread = simulate(*make_config(tmp_path / "far", engine=engine, store=store))
        far = final_state(tmp_path / "far")

    near = simulate(*make_config(tmp_path / "near"))

    assert far == final_state(tmp_path / "near")
    assert spread.evaluations == near.evaluations
    assert not list((tmp_path / "far").rglob("*.sqlite"))


def test_more_workers_than_the_cluster_has_are_refused(tmp_path: Path, joined: EngineSection) -> None:
    many = {"kind": "ray", "address": joined.address, "workers": 3}

    with pytest.raises(ConfigError, match=r"engine.workers is 3 but the Ray cluster has 2 CPUs; take fewer"):
        simulate(*make_config(tmp_path, engine=many))
