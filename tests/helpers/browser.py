"""A real browser for tests of the page: Debian's Chromium, driven by Playwright."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Page, sync_playwright

from helpers.tools import REPO

AXE = REPO / "tests" / "vendor" / "axe-core-4.14.0" / "axe.min.js"
WAIT_MS = 60_000
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def chromium() -> str | None:
    """The browser of this machine, if there is one."""
    return shutil.which("chromium")


@contextmanager
def browser_page(*, width: int = 1280, height: int = 860, dark: bool = False) -> Iterator[Page]:
    """An empty page of a new browser; what it complains of, and whoever it asks elsewhere, is in `page.complaints`."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=ARGUMENTS)
        try:
            scheme: Any = "dark" if dark else "light"
            page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
            page.set_default_timeout(WAIT_MS)
            complaints: list[str] = []
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.on("console", lambda said: complaints.append(said.text) if "Content Security" in said.text else None)
            page.on("dialog", lambda dialog: complaints.append(f"dialog {dialog.message}"))
            page.complaints = complaints  # type: ignore[attr-defined]
            yield page
        finally:
            browser.close()


def mistakes(page: Page) -> list[str]:
    """What axe finds wrong with labels, roles and contrast of what is shown."""
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found = page.evaluate("async () => (await axe.run(document, {resultTypes: ['violations']})).violations")
    return [f"{one['id']}: {json.dumps([node['html'][:160] for node in one['nodes'][:3]])}" for one in found]
