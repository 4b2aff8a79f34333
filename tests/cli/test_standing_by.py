"""A server that another one has taken its run from does not leave: it may be needed again."""

from pathlib import Path
from typing import Any

import pytest

from fedwright.cli.main import main
from fedwright.protocol.errors import LeaseLost
from fedwright.server_runtime import run as runs

CONFIG = '[run]\nname = "night"\n[fleet]\nbroker = "mqtt://127.0.0.1:1"\n[method]\nname = "fedavg"\n'


def test_who_lost_a_run_stands_by_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text(CONFIG)
    attempts: list[str] = []

    def execute(config: Any, text: str, **given: Any) -> None:
        attempts.append(config.run.name)
        if len(attempts) == 1:
            raise LeaseLost("server 7 on there has taken this run over")

    monkeypatch.setattr(runs, "execute", execute)

    assert main(["server", "run", "run.toml"]) == 0
    assert attempts == ["night", "night"]
    assert "has taken this run over; this one stands by again" in capsys.readouterr().err
