"""Tries the blocks of pages, each page in a folder of its own, and prints what came of each; runs as a process."""

import json
import sys
import traceback
from pathlib import Path
from typing import Any

from fedwright.simulation import simulate
from fedwright.simulation.local_fleet import WorkerPool
from helpers.pages import blocks_of, try_block


def try_page(page: str, text: str, folder: Path) -> str:
    """What went wrong, or nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        for block in blocks_of(page, text):
            folder = try_block(block, folder)
    except (Exception, SystemExit):  # noqa: BLE001 - whatever it is, it is this page's failure
        return traceback.format_exc()
    return ""


def main() -> None:
    """Reads {page: text} and answers {page: problem}."""
    # A process for each core costs more than these fleets.
    vars(simulate)["WorkerPool"] = _alone
    parent = Path(sys.argv[1])
    problems = {page: try_page(page, text, parent / page) for page, text in json.load(sys.stdin).items()}
    (parent / "problems.json").write_text(json.dumps(problems))


def _alone(*arguments: Any, processes: int) -> WorkerPool:
    del processes
    return WorkerPool(*arguments, processes=0)


if __name__ == "__main__":
    main()
