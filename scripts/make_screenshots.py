"""Takes the pictures of the page that README and docs show. Usage: scripts/make_screenshots.py RUNS RUN [FOLDER]

RUNS is a folder with runs, such as one that `fedwright demo --keep FOLDER` made, RUN the name of one of them.
"""

import sys
import threading
from pathlib import Path
from typing import Literal

from playwright.sync_api import sync_playwright

from fedwright.server_runtime.page.address import PageSettings
from fedwright.server_runtime.page.serve import make_server

ADDRESS = "127.0.0.1:8799"
WIDE, PHONE = (1280, 820), (390, 800)
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]


def pictures(run: str) -> list[tuple[str, str, tuple[int, int], bool]]:
    """Name, view, size and whether it is dark, for each picture."""
    return [
        ("page-fleet", f"run/{run}/fleet", WIDE, False),
        ("page-round", f"run/{run}/round", WIDE, False),
        ("page-run", f"run/{run}/run", (1280, 1120), False),
        ("page-run-dark", f"run/{run}/run", (1280, 1120), True),
        ("page-compare", "compare", (1280, 1240), False),
        ("page-phone", f"run/{run}/fleet", PHONE, True),
    ]


def main(runs: str, run: str, folder: str = "docs/images") -> None:
    """Serve the runs and take every picture."""
    server = make_server(Path(runs), PageSettings(ADDRESS))
    thread = threading.Thread(target=server.run)
    thread.start()
    Path(folder).mkdir(parents=True, exist_ok=True)
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=ARGUMENTS)
            for name, view, (width, height), dark in pictures(run):
                scheme: Literal["dark", "light"] = "dark" if dark else "light"
                page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
                page.goto(f"http://{ADDRESS}/#/{view}")
                page.wait_for_timeout(2500)
                page.screenshot(path=str(Path(folder) / f"{name}.png"))
                page.close()
            browser.close()
    finally:
        server.should_exit = True
        thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
