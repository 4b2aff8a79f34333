"""The page with 1,000 devices that each say something new every second: how fast it answers, and what it costs.

A stand-in for the server feeds the real observer, which writes what the page reads; the page is a process of its own,
as beside a real server. CPU time is of processes, so that what else runs on the machine counts little.
"""

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from fedwright.protocol.messages import Status
from fedwright.protocol.support.files import lock_folder
from fedwright.server_runtime.rounds import events
from fedwright.server_runtime.rounds.audit import AUDIT, AuditLog
from fedwright.server_runtime.watch.live import Live

DEVICES, ROUNDS = 1000, 20
ANSWER_MS, CPU_PERCENT, FRAME_MS = 100.0, 3.0, 50.0
NAME = "fleet"
BOARD = {"model": "Raspberry Pi 4", "profile": "raspberry-pi-4", "cores": 4, "ram_bytes": 4_000_000_000}
OFFER = {"width": 0.5, "rank": 0, "macs": 1_000_000, "bytes_down": 100_000, "need_bytes": 20_000_000, "step_s": 0.01}
STATS = {"samples": 100, "steps": 50, "train_s": 0.6, "holdout": 20, "correct_before": 15, "peak_rss_bytes": 10**8}
PATHS = {
    "fleet": f"api/runs/{NAME}/fleet",
    "run": f"api/runs/{NAME}",
    "round": f"api/runs/{NAME}/rounds/{ROUNDS}",
    "device": f"api/runs/{NAME}/devices/pi-0007",
    "all runs": "api/runs",
}
# In the browser: the time between frames while the list is scrolled.
FRAMES = """async (ms) => {
  const view = document.querySelector('.virtual-view'), found = [];
  let last = performance.now(), end = last + ms, step = 0;
  while (performance.now() < end) {
    await new Promise(requestAnimationFrame);
    const now = performance.now();
    found.push(now - last);
    last = now;
    view.scrollTop = (step += 40) % (view.scrollHeight - view.clientHeight);
  }
  return {frames: found, rows: document.querySelectorAll('.virtual-row').length};
}"""


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Measure; see the module."""
    seconds = 5.0 if args.quick else 20.0
    names = [f"pi-{number:04}" for number in range(DEVICES)]
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / NAME
        folder.mkdir()
        _write_history(folder, names)
        alone = _server_cpu(folder, names, seconds, watched=False)
        watched = _server_cpu(folder, names, seconds, watched=True)
        with _served(folder, names), _page(Path(parent)) as (url, process):
            idle = _cpu_percent(process, seconds)
            with _listener(url):
                busy = _cpu_percent(process, seconds)
            answers = _answers(url, seconds)
            browser = _frames(url, seconds)
    return _result(answers, browser, {"alone": alone, "watched": watched, "page": idle, "page, one browser": busy})


def _write_history(folder: Path, names: list[str]) -> None:
    """The log of a run with some rounds behind it, and one under way."""
    log = AuditLog(folder / AUDIT, sync=False)
    log.append(
        "began", about={"run": NAME, "method": "fedavg", "model": "cnn-small", "rounds": 100, "devices": DEVICES}
    )
    for name in names:
        log.append("joined", device=name, samples=100, board=BOARD, agent="0.1.0", free_bytes=10**9, trains=True)
    for number in range(1, ROUNDS + 1):
        log.append("sent", round=number, to=names, offers=dict.fromkeys(names, OFFER))
        for name in names if number < ROUNDS else ():
            spans = {"waiting": 0.1, "down": 0.2, "train": 0.6, "up": 0.1}
            log.append("accepted", round=number, device=name, stats=STATS, spans=spans)
        if number < ROUNDS:
            metrics = {"loss": 1.0 / number, "bytes_down": 1e8, "bytes_up": 1e8}
            log.append("round closed", round=number, metrics=metrics, seconds=30.0)
    log.close()


def _speak(observer: events.Observer, names: list[str], step: int) -> None:
    """Every device says something new."""
    for place, name in enumerate(names):
        status = Status(
            f"t{place}", "training", (7 * place + step) % 400, 400, 10**9 + step, 4 * 10**9, 50.0 + step % 20
        )
        observer(events.DeviceStatus(ROUNDS, name, status))


def _server_cpu(folder: Path, names: list[str], seconds: float, *, watched: bool) -> float:
    """Percent of one core that a server spends on hearing its devices, with and without what the page reads."""
    observer = Live(folder, events.ignore) if watched else events.ignore
    began_s, cpu_s = time.monotonic(), time.process_time()
    step = 0
    while time.monotonic() < began_s + seconds:
        _speak(observer, names, step)
        step += 1
        time.sleep(max(0.0, began_s + step - time.monotonic()))
    return 100.0 * (time.process_time() - cpu_s) / (time.monotonic() - began_s)


@contextmanager
def _served(folder: Path, names: list[str]) -> Iterator[None]:
    """The folder is served, and its devices speak once a second, while the block runs."""
    stop = threading.Event()
    live = Live(folder, events.ignore)

    def speak() -> None:
        step = 0
        while not stop.wait(1.0):
            step += 1
            _speak(live, names, step)
            live.write()

    lock = lock_folder(folder)
    thread = threading.Thread(target=speak)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        if lock is not None:
            lock.close()


@contextmanager
def _page(parent: Path) -> Iterator[tuple[str, psutil.Process]]:
    """A page over the runs of a folder: where it is, and its process."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{found.getsockname()[1]}"
    words = [sys.executable, "-m", "fedwright", "page", str(parent), "--page", address]
    child = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    try:
        url = f"http://{address}/"
        while child.poll() is None:
            with suppress(OSError):
                _get(url + PATHS["fleet"])
                break
            time.sleep(0.1)
        yield url, psutil.Process(child.pid)
    finally:
        child.terminate()
        child.wait()


def _get(url: str) -> int:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return len(answer.read())


def _cpu_percent(process: psutil.Process, seconds: float) -> float:
    """Percent of one core that a process takes."""
    before, began_s = sum(process.cpu_times()[:2]), time.monotonic()
    time.sleep(seconds)
    return float(100.0 * (sum(process.cpu_times()[:2]) - before) / (time.monotonic() - began_s))


@contextmanager
def _listener(url: str) -> Iterator[None]:
    """Somebody who hears all news, as a browser does."""
    answer = urllib.request.urlopen(f"{url}api/runs/{NAME}/events", timeout=30)
    stop = threading.Event()

    def listen() -> None:
        while not stop.is_set() and answer.readline():
            pass

    thread = threading.Thread(target=listen)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        answer.close()


def _answers(url: str, seconds: float) -> list[dict[str, Any]]:
    """How long each kind of answer takes while somebody listens, in milliseconds."""
    rows = []
    with _listener(url):
        for title, path in PATHS.items():
            taken, size, end_s = [], 0, time.monotonic() + seconds / 2
            while time.monotonic() < end_s:
                began_s = time.perf_counter()
                size = _get(url + path)
                taken.append(1000.0 * (time.perf_counter() - began_s))
                # Not a flood, which the page would turn away.
                time.sleep(0.05)
            p50, p95, p99 = (float(np.percentile(taken, share)) for share in (50, 95, 99))
            rows.append(
                {"answer": title, "kB": size / 1e3, "p50 ms": p50, "p95 ms": p95, "p99 ms": p99, "n": len(taken)}
            )
    return rows


def _frames(url: str, seconds: float) -> dict[str, Any] | None:
    """How smooth a browser stays; None where there is none."""
    import shutil

    program = shutil.which("chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        return None
    if program is None:
        return None
    with sync_playwright() as playwright:
        options = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
        browser = playwright.chromium.launch(executable_path=program, args=options)
        page = browser.new_page()
        page.goto(f"{url}#/run/{NAME}/fleet")
        page.locator(".virtual-row").first.wait_for()
        found: dict[str, Any] = page.evaluate(FRAMES, 1000 * seconds)
        browser.close()
    frames = found["frames"]
    p50, p95, p99 = (float(np.percentile(frames, share)) for share in (50, 95, 99))
    return {"frames": len(frames), "p50 ms": p50, "p95 ms": p95, "p99 ms": p99, "rows in the document": found["rows"]}


def _result(answers: list[dict[str, Any]], browser: dict[str, Any] | None, cpu: dict[str, float]) -> dict[str, Any]:
    slowest = max(row["p95 ms"] for row in answers)
    more = max(0.0, cpu["watched"] - cpu["alone"])
    checks = [
        {
            "name": "slowest answer, p95 ms",
            "value": slowest,
            "target": f"<= {ANSWER_MS:.0f}",
            "holds": slowest <= ANSWER_MS,
        },
        {
            "name": "server's CPU more, % of a core",
            "value": more,
            "target": f"<= {CPU_PERCENT:.0f}",
            "holds": more <= CPU_PERCENT,
        },
    ]
    tables: dict[str, Any] = {
        f"answers with {DEVICES} devices, each new every second": answers,
        "CPU, percent of one core": [{"process": name, "percent": value} for name, value in cpu.items()],
    }
    notes = [
        f"{os.cpu_count()} cores; `alone` and `watched`: a server that hears its devices, without and with what the"
        " page reads; the page itself is a process of its own"
    ]
    if browser is None:
        notes.append("no browser was measured: it takes chromium and the package playwright")
    else:
        tables["frames of a browser that scrolls"] = [browser]
        frame = browser["p95 ms"]
        checks.append(
            {"name": "frame, p95 ms", "value": frame, "target": f"<= {FRAME_MS:.0f}", "holds": frame <= FRAME_MS}
        )
    return {"tables": tables, "checks": checks, "notes": notes}
