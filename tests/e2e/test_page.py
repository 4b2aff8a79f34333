"""The page in a real browser, beside a real run that is paused, killed, resumed and ended from it."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Error, Page, expect

from fedwright.benchmarks.harness.report import write_report
from fedwright.device_runtime.emulate.fleet import EmulatedFleet
from fedwright.protocol.link.broker import Broker
from helpers.browser import WAIT_MS, browser_page, chromium, mistakes
from helpers.data_files import save_points
from helpers.page_runs import HOSTILE, write_run
from helpers.scrape import free_port
from helpers.served import served_config, start_agents

pytestmark = [
    pytest.mark.broker,
    pytest.mark.slow,
    pytest.mark.skipif(chromium() is None and not os.environ.get("CI"), reason="needs chromium; run scripts/setup"),
]
VIEWS = [
    "run/pets/fleet",
    "run/pets/round",
    "run/pets/run",
    "run/pets/device/pi",
    "compare/pets/birds",
    "bench",
    "runs",
]
ENDLESS = 5000
REPORTED: dict[str, Any] = {
    "suite": "tried",
    "command": "fedwright bench tried",
    "date": "2026-01-02",
    "versions": {"fedwright": "1.0"},
    "machine": "a machine",
    "tables": {"by round": [{"round": 1, "one": 50.0, "two": 40.0}, {"round": 2, "one": 80.0, "two": 75.0}]},
    "checks": [{"name": "one - two", "value": 5.0, "target": "> 0", "holds": True}],
}
# Of a run that goes on: views, and what of each is there once it shows the run.
LIVE_VIEWS = {
    "run/night/fleet": ".virtual-row",
    "run/night/round/1": ".lane[aria-label*=training]",
    "run/night/run": "figure",
    "run/night/device/a": ".news li",
    "compare/night/pets": "section.card table :text-is('night')",
    "bench": "iframe.report",
    "runs": "text=night",
}


@contextmanager
def command(folder: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A command of ours that runs while the block does; what it says is in page.log."""
    with (folder / "page.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "fedwright", *words], cwd=folder, stdout=log, stderr=log, stdin=subprocess.DEVNULL
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def opened(page: Page, address: str, view: str) -> None:
    """Open a view, however long the page takes to start."""
    for _ in range(600):
        try:
            page.goto(f"http://{address}/#/{view}")
        except Error as err:
            if "ERR_CONNECTION_REFUSED" not in str(err):
                raise
            page.wait_for_timeout(100)
        else:
            return


def asked(address: str, path: str) -> Any:
    with urllib.request.urlopen(f"http://{address}/api/{path}", timeout=60) as answer:
        return json.load(answer)


def confirm(page: Page, button: str, word: str) -> None:
    """Press a button and then that of the question, twice as fast as anybody can."""
    page.get_by_role("button", name=button, exact=True).click()
    page.locator("dialog").get_by_role("button", name=word, exact=True).dblclick()


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a page over two past runs; one of their devices is called <script>."""
    folder = tmp_path_factory.mktemp("shelf")
    write_run(folder / "runs" / "pets", [HOSTILE, "nano", "pi"], rounds=5)
    write_run(folder / "runs" / "birds", ["nano", "pi"], rounds=4)
    write_report([REPORTED], folder / "report")
    address = f"127.0.0.1:{free_port()}"
    with command(folder, "page", "runs", "--page", address):
        yield address


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_view_can_be_read_by_everybody_and_runs_nothing_of_a_device(shelf: str, dark: bool) -> None:
    with browser_page(dark=dark) as page:
        foreign: list[str] = []
        page.on("request", lambda request: foreign.append(request.url) if f"//{shelf}/" not in request.url else None)
        found = {}
        for view in VIEWS:
            opened(page, shelf, view)
            page.get_by_role("heading", level=1).first.wait_for()
            if view == "bench":
                page.frame_locator("iframe.report").get_by_text("one - two").first.wait_for()
            page.wait_for_timeout(300)
            found[view] = mistakes(page)
        opened(page, shelf, "run/pets/fleet")
        expect(page.get_by_text(HOSTILE, exact=True).first).to_be_visible()

        assert found == {view: [] for view in VIEWS}
        assert page.complaints == []  # type: ignore[attr-defined]
        assert [url for url in foreign if not url.startswith(("data:", "blob:"))] == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_report_of_the_benchmarks_is_shown_and_can_be_read(shelf: str, dark: bool) -> None:
    with browser_page(dark=dark) as page:
        opened(page, shelf, "bench")
        shown = page.frame_locator("iframe.report")
        expect(shown.get_by_text("one - two").first).to_be_visible()
        expect(shown.locator("img").first).to_be_visible()
        assert page.complaints == []  # type: ignore[attr-defined]
        # Where it is served no script may run, so that axe looks at it elsewhere.
        with urllib.request.urlopen(f"http://{shelf}/bench/report", timeout=60) as answer:
            page.goto("about:blank")
            page.set_content(answer.read().decode())

        assert mistakes(page) == []


def test_axe_finds_what_is_wrong(shelf: str) -> None:
    with browser_page() as page:
        opened(page, shelf, "runs")
        page.evaluate("document.body.append(document.createElement('button'))")

        assert [one for one in mistakes(page) if one.startswith("button-name")]


def test_keys_alone_lead_to_a_device(shelf: str) -> None:
    with browser_page() as page:
        opened(page, shelf, "run/pets/fleet")
        rows = page.locator(".virtual-row")
        rows.first.focus()
        page.keyboard.press("End")
        expect(rows.last).to_be_focused()
        page.keyboard.press("Enter")

        expect(page.get_by_role("heading", level=1)).to_have_text("pi")


def test_a_phone_shows_a_fleet_without_scrolling_sideways(shelf: str) -> None:
    with browser_page(width=390, height=800) as page:
        for view in VIEWS:
            opened(page, shelf, view)
            page.get_by_role("heading", level=1).first.wait_for()

            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), view


def test_a_run_is_paused_killed_resumed_and_ended_from_the_page(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    with Broker() as broker, EmulatedFleet(tmp_path / "logs") as fleet, browser_page() as page:
        (tmp_path / "run.toml").write_text(served_config(broker.url, rounds=ENDLESS))
        for seed, device in enumerate(("a", "b")):
            save_points(tmp_path / f"{device}.npz", seed=seed)
        data = {device: f"npz:{tmp_path / device}.npz" for device in ("a", "b")}
        start_agents(fleet, broker.url, tmp_path, data)
        write_run(tmp_path / "runs" / "pets", ["nano", "pi"])
        write_report([REPORTED], tmp_path / "report")
        pill, link = page.locator("h1 ~ p >> xpath=../..").locator(".pill"), page.locator("#link")
        with command(tmp_path, "server", "run", "run.toml", "--page", address) as server:
            opened(page, address, "run/night/fleet")
            expect(page.locator(".virtual-row")).to_have_count(2, timeout=WAIT_MS)
            page.wait_for_function("() => parseInt(document.querySelector('.tile-value').textContent) > 0")
            seen = look_around(page, address)
            opened(page, address, "run/night/fleet")
            confirm(page, "Pause", "Pause")
            expect(pill).to_have_text("paused", timeout=WAIT_MS)
            server.send_signal(signal.SIGKILL)
            expect(link).to_have_text("Connection lost, trying again", timeout=WAIT_MS)
        with command(tmp_path, "server", "resume", "runs/night", "--page", address):
            expect(link).to_have_text("Live", timeout=WAIT_MS)
            # It is still paused, and says so by itself.
            expect(pill).to_have_text("paused", timeout=WAIT_MS)
            measured(page, tmp_path, address)
            opened(page, address, "run/night/fleet")
            confirm(page, "Resume", "Resume")
            expect(pill).to_have_text("running", timeout=WAIT_MS)
            page.locator(".virtual-row").first.click()
            expect(page.get_by_role("heading", level=1)).to_have_text("a")
            with page.expect_download() as download:
                page.get_by_role("button", name="Export its model").click()
            exported = download.value.suggested_filename
            page.goto(f"http://{address}/#/run/night/run")
            confirm(page, "End after this round", "End the run")
            found = ended(page, address)

    assert seen == {view: [] for view in LIVE_VIEWS}
    assert page.complaints == []  # type: ignore[attr-defined]
    assert exported == "night-a.onnx"
    assert [row["round"] for row in found["figures"]] == list(range(1, found["rounds_done"] + 1))
    assert len(found["lives"]) == 2
    lines = (tmp_path / "runs" / "night" / "audit.jsonl").read_text().splitlines()
    ordered = [json.loads(line)["detail"] for line in lines if '"what":"ordered"' in line]
    assert ordered == ["pause", "profile", "resume", "end"]


def look_around(page: Page, address: str) -> dict[str, list[str]]:
    """Open every view of the run that goes on; what axe finds wrong in each."""
    found = {}
    for view, there in LIVE_VIEWS.items():
        opened(page, address, view)
        page.locator(there).first.wait_for()
        found[view] = mistakes(page)
    return found


def measured(page: Page, folder: Path, address: str) -> None:
    """Order a device to measure itself, which it really does, and see its page say so."""
    ordered = [sys.executable, "-m", "fedwright", "server", "ctl", "runs/night", "profile", "a"]
    subprocess.run(ordered, cwd=folder, check=True, capture_output=True)
    opened(page, address, "run/night/device/a")
    expect(page.locator(".news .what", has_text="measured")).to_have_count(1, timeout=3 * WAIT_MS)
    kept = json.loads((folder / "state" / "profile.json").read_text())["profiles"]
    assert [len(one["kinds"]) > 10 for one in kept.values()] == [True]


def ended(page: Page, address: str) -> Any:
    """The run as the page tells of it while its last round is measured; its process ends with it."""
    found: Any = {}
    for _ in range(600):
        try:
            found = asked(address, "runs/night")
        except OSError:
            return found
        page.wait_for_timeout(50)
    raise AssertionError(f"the run did not end: {found}")
