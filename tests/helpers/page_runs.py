"""A folder with a run as its log tells it, for tests of the page, and a visitor of the page."""

import json
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from fedwright.server_runtime.page.answers import PageState
from fedwright.server_runtime.page.app import make_app
from fedwright.server_runtime.page.guard import Guard
from fedwright.server_runtime.page.people import People
from fedwright.server_runtime.page.runs import Runs
from fedwright.server_runtime.rounds.audit import AUDIT, AuditLog

HOSTILE = "<script>alert(1)</script>"
BOARD = {"model": HOSTILE, "machine": "aarch64", "cores": 4, "ram_bytes": 4_000_000_000, "runtime": "onnxruntime"}
STATS = {"samples": 40, "steps": 10, "train_s": 1.0, "holdout": 10, "correct_before": 7, "peak_rss_bytes": 90_000_000}
SPANS = {"waiting": 0.2, "down": 0.8, "train": 1.5, "up": 0.5}
PATH = "/home/ann/secret/data.npz"


def write_run(folder: Path, devices: list[str], *, rounds: int = 2) -> Path:
    """A run of which so many rounds were closed; what the devices say of themselves is hostile."""
    folder.mkdir(parents=True, exist_ok=True)
    log = AuditLog(folder / AUDIT, sync=False)
    about = {"run": folder.name, "method": "fedavg", "model": "mlp", "rounds": rounds + 1}
    log.append("began", about=about, by="ann", host="machine", command=f"fedwright server run {PATH}")
    for device in devices:
        log.append("joined", device=device, samples=40, board=BOARD, agent="0.1.0", free_bytes=10**9, trains=True)
    offer = {"width": 0.5, "rank": 0, "macs": 1000, "bytes_down": 2000, "need_bytes": 5 * 10**6, "step_s": 0.09}
    for number in range(1, rounds + 1):
        log.append("sent", round=number, to=devices, offers=dict.fromkeys(devices, offer))
        for device in devices[1:]:
            log.append("accepted", round=number, device=device, stats=STATS, spans=SPANS)
        log.append("refused", round=number, device=devices[0], detail=f"{devices[0]} refused: no {PATH}")
        metrics = {"loss": 1.0 / number, "bytes_down": 4000.0, "bytes_up": 3000.0}
        log.append("round closed", round=number, metrics=metrics, seconds=2.0)
    log.close()
    return folder


def visitor(parent: Path, *, people: Path | None = None, local: bool = True, host: str = "localhost") -> TestClient:
    """Somebody who opens the page of the runs below a folder."""
    guard = Guard(make_app(PageState(Runs(parent))), People(people), local)
    return TestClient(guard, base_url=f"{'http' if local else 'https'}://{host}", client=("192.0.2.7", 50_000))


def first_event(client: TestClient, run: str) -> dict[str, Any]:
    """What a browser hears at first."""
    with client.stream("GET", f"/api/runs/{run}/events") as answer:
        for line in answer.iter_lines():
            if line.startswith("data: "):
                found: dict[str, Any] = json.loads(line.removeprefix("data: "))
                return found
    raise AssertionError("nothing came")
