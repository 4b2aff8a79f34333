"""What Prometheus reads of a run: whole after a kill, bounded whoever comes, by its conventions."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fedwright.protocol.support.metrics import Figure, Histogram, Metric
from fedwright.server_runtime.edge.metrics import EdgeFigures, EdgeSnapshot
from fedwright.server_runtime.rounds.audit import AUDIT, AuditLog
from fedwright.server_runtime.watch import metrics
from fedwright.server_runtime.watch.metrics import RunFigures
from helpers.scrape import memory_link, names_in, samples
from helpers.tools import REPO, require_tool, run

DEPLOY = REPO / "deploy"
ABOUT = {"run": "pets", "method": "fedavg", "model": "lenet", "rounds": 3, "deadline_s": 60.0, "kind": "served"}
BEGAN = ("began", {"about": ABOUT})
SENT = ("sent", {"round": 1, "to": {"pi": ["t1", "b1"], "nano": ["t2", "b2"]}, "offers": {"pi": {"width": 0.5}}})
STATS = {"holdout": 10, "correct_before": 7, "peak_rss_bytes": 700}
STORY = (
    BEGAN,
    ("joined", {"device": "pi", "samples": 5}),
    ("joined", {"device": "nano", "samples": 5}),
    SENT,
    ("accepted", {"round": 1, "device": "pi", "stats": STATS}),
    ("refused", {"round": 1, "device": "nano", "detail": "too hot"}),
    ("round closed", {"round": 1, "metrics": {"loss": 0.5}, "seconds": 2.0}),
    ("lost", {"device": "nano"}),
    ("warning", {"detail": "no examples"}),
)


def write(folder: Path, *lines: tuple[str, dict[str, Any]]) -> None:
    log = AuditLog(folder / AUDIT, sync=False)
    for what, facts in lines:
        log.append(what, **facts)
    log.close()


def scrape(figures: RunFigures) -> dict[str, dict[tuple[str, ...], float]]:
    return samples(figures.endpoint().exposition("")[0].decode())


def test_a_run_is_told_in_figures(tmp_path: Path) -> None:
    write(tmp_path, *STORY)

    found = scrape(RunFigures(tmp_path))

    [words] = found["fedwright_run_info"]
    assert {"pets", "fedavg", "lenet", "served"} < set(words)
    assert found["fedwright_rounds_planned"] == {(): 3}
    assert found["fedwright_rounds_completed"] == {(): 1}
    assert found["fedwright_tasks_total"] == {("accepted",): 1, ("refused",): 1, ("rejected",): 0, ("late",): 0}
    assert found["fedwright_round_accuracy_ratio"] == {("mean",): 0.7, ("worst",): 0.7, ("tenth_percentile",): 0.7}
    assert found["fedwright_round_duration_seconds_bucket"][("2.5",)] == 1
    assert found["fedwright_device_peak_memory_bytes"] == {("pi",): 700}
    assert found["fedwright_devices"][("silent",)] == 1
    assert found["fedwright_device_up"] == {("pi",): 0, ("nano",): 0}
    assert found["fedwright_warnings_total"] == {(): 1}
    assert found["fedwright_disk_free_bytes"][()] > 0


def test_counters_go_on_when_a_server_is_killed_and_resumed(tmp_path: Path) -> None:
    write(tmp_path, *STORY)
    before = scrape(RunFigures(tmp_path))
    write(tmp_path, BEGAN, ("accepted", {"round": 2, "device": "pi", "stats": STATS}))

    after = scrape(RunFigures(tmp_path))

    assert before["fedwright_device_updates_total"] == {("pi",): 1, ("nano",): 0}
    assert after["fedwright_device_updates_total"] == {("pi",): 2, ("nano",): 0}
    assert after["fedwright_run_starts_total"] == {(): 2}


def test_a_round_that_waits_is_seen_to_grow_old(tmp_path: Path) -> None:
    write(tmp_path, BEGAN, SENT)
    now_s = [0.0]
    figures = RunFigures(tmp_path, clock=lambda: now_s[0])
    served(figures)
    began_s = figures._watch.history.lives[0][0] or 0.0
    now_s[0] = began_s + 50.0

    found = scrape(figures)

    assert found["fedwright_round_open_tasks"] == {(): 2}
    assert found["fedwright_round_age_seconds"][()] == pytest.approx(50.0, abs=1.0)
    assert found["fedwright_round_deadline_seconds"] == {(): 60}


def served(figures: RunFigures) -> None:
    """Let the run look as if a server were at work on it."""
    watch = figures._watch
    watch.look()
    watch.served = True
    watch.look = lambda: True  # type: ignore[method-assign]


def test_ten_thousand_unknown_ids_make_no_series(tmp_path: Path) -> None:
    crowd = [("turned away", {"device": f"stranger-{number}", "detail": "unknown"}) for number in range(10_000)]
    write(tmp_path, *STORY, *crowd)

    figures = RunFigures(tmp_path)
    text = figures.endpoint().exposition("")[0].decode()

    assert "stranger" not in text
    assert samples(text)["fedwright_devices"][("turned away",)] == 10_000
    assert samples(text)["fedwright_devices_without_series"] == {(): 10_000}
    assert text.count("\n") < 400


def test_members_beyond_the_limit_are_counted_and_those_who_gave_updates_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "MOST_DEVICES", 2)
    joined = [("joined", {"device": f"a{number}", "samples": 1}) for number in range(5)]
    write(tmp_path, *STORY, *joined)

    found = scrape(RunFigures(tmp_path))

    assert set(found["fedwright_device_up"]) == {("pi",), ("a0",)}
    assert found["fedwright_devices_without_series"] == {(): 5}


def test_readiness_is_the_brokers(tmp_path: Path) -> None:
    assert RunFigures(tmp_path, link=memory_link()).problem() == ""
    assert RunFigures(tmp_path, link=memory_link(connected=False)).problem() == "the broker is not reached"


def test_certificates_are_told_by_kind_and_not_read_at_every_scrape(tmp_path: Path) -> None:
    read: list[int] = []

    def expiries() -> dict[str, float]:
        read.append(1)
        return {"authority": 2e9, "device": 1.9e9}

    figures = RunFigures(tmp_path, expiries=expiries)
    scrape(figures)

    found = scrape(figures)["fedwright_certificate_expiry_timestamp_seconds"]

    assert found == {("authority",): 2e9, ("device",): 1.9e9}
    assert len(read) == 1


def test_an_edge_is_told_in_figures(tmp_path: Path) -> None:
    link = memory_link()
    edge = EdgeFigures(lambda: EdgeSnapshot(2, {"open": 1}, 5.0), tmp_path, link, memory_link(connected=False))

    found = samples(edge.endpoint().exposition("")[0].decode())

    assert found["fedwright_edge_devices"] == {(): 2}
    assert found["fedwright_edge_tasks"][("open",)] == 1
    assert found["fedwright_host_link_up"] == {(): 1}
    assert found["fedwright_link_up"] == {(): 0}
    assert edge.problem() == "the broker of the devices is not reached"


def test_names_follow_the_conventions_of_prometheus(tmp_path: Path) -> None:
    promtool = require_tool("promtool")
    write(tmp_path, *STORY)
    body, _ = RunFigures(tmp_path, link=memory_link()).endpoint().exposition("")

    checked = subprocess.run([promtool, "check", "metrics"], input=body, capture_output=True, check=False)

    assert (checked.returncode, checked.stderr) == (0, b"")


def test_rules_are_rules_and_fire_when_they_should() -> None:
    promtool = require_tool("promtool")

    assert "8 rules found" in run([promtool, "check", "rules", str(DEPLOY / "alerts.yml")])
    assert "valid" in run([promtool, "check", "config", str(DEPLOY / "prometheus.yml")])
    run([promtool, "test", "rules", str(Path(__file__).with_name("alerts_test.yml"))])


def test_dashboard_and_rules_ask_for_figures_that_exist(tmp_path: Path) -> None:
    write(tmp_path, *STORY)
    known = names_of(tmp_path)
    panels = json.loads((DEPLOY / "grafana-dashboard.json").read_text())["panels"]
    asked = {name for panel in panels for target in panel["targets"] for name in names_in(target["expr"])}
    rules = names_in((DEPLOY / "alerts.yml").read_text())

    assert len(asked) > 20
    assert asked - known == set()
    assert rules - known == set()


def names_of(folder: Path) -> set[str]:
    """Every figure of server, edge and agent."""
    link = memory_link()
    run_figures = RunFigures(folder, link=link)
    edge = EdgeFigures(EdgeSnapshot, folder, link, link)
    agent = set(names_in((REPO / "device_runtime" / "metrics.py").read_text()))
    process = {"process_cpu_seconds_total", "process_resident_memory_bytes"}
    return {name(figure) for figure in (*run_figures.collect(), *edge.collect())} | agent | process


def name(figure: Figure) -> str:
    assert isinstance(figure, Metric | Histogram) or figure.name.endswith("_info")
    return figure.name
