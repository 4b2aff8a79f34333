"""Every program of docs/python.md runs as it is printed, in an empty folder."""

import re
import sys
from pathlib import Path

import pytest

from helpers.tools import REPO, run

PROGRAMS = dict(
    re.findall(r"```python\n# (\w+)\.py\n(.*?)```", (REPO / "docs" / "python.md").read_text(), flags=re.DOTALL)
)
# What each prints or writes, among other things.
SHOWN = {
    "study": r"<Run hasa: 4 rounds, 10 devices",
    "early": r"stopped; the same call goes on from runs/early",
    "graph": r"raspberry-pi-4, batch 32",
    "embedded": r"<Run fedavg: 2",
}


def test_no_program_is_left_out() -> None:
    assert PROGRAMS.keys() == SHOWN.keys()


@pytest.mark.broker
@pytest.mark.parametrize("name", SHOWN)
def test_a_program_of_the_page_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path(f"{name}.py").write_text(PROGRAMS[name])

    assert SHOWN[name] in run([sys.executable, f"{name}.py"])
