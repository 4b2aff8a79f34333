"""What a person sees of a run: lines where there is no terminal, a live table where there is one."""

import io
import logging

import pytest
from rich.console import Console

from fedwright.cli import progress as module
from fedwright.cli.progress import Progress
from fedwright.protocol.messages import Stats
from fedwright.protocol.support.steps import counted
from fedwright.server_runtime.rounds import events
from helpers.fleet import report

STATS = Stats(samples=24, steps=3, train_s=1.0, cpu_s=1.0, peak_rss_bytes=1, holdout=8, correct_before=2)
STORY: list[events.Event] = [
    events.Waiting(2, ()),
    events.DeviceJoined("pi", report()),
    events.DeviceJoined("nano", report()),
    events.DeviceLost("nano"),
    events.Waiting(2, ("pi",)),
    events.DeviceJoined("nano", report()),
    events.StagePlanned(1, ("pi", "nano"), False),
    events.DeviceLost("pi"),
    events.DeviceJoined("pi", report()),
    events.UpdateTaken(1, "pi", STATS, 2.5),
    events.DeviceTurnedAway("nano", "its data has another shape"),
    events.TaskFailed(1, "tx2", "no answer within 60 s"),
    events.Warned("device nano was revoked", "nano", "revoked"),
    events.DeviceLost("nano"),
    events.Warned("the server has no examples"),
    events.RoundClosed(1, {"updates": 1.0, "loss": 0.5, "accuracy_before": 0.25}, 3.0),
    events.StagePlanned(2, ("pi",), True),
]


def tell(monkeypatch: pytest.MonkeyPatch, *, terminal: bool) -> tuple[str, Progress]:
    """What is written while the story happens, and the progress at its end."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=100)
    monkeypatch.setattr(module, "Console", lambda stderr: console)
    with Progress(3, 2) as progress:
        for event in STORY:
            progress(event)
    return out.getvalue(), progress


def test_without_a_terminal_there_are_plain_lines_also_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    text, _ = tell(monkeypatch, terminal=False)

    # Whoever warns writes that into the log himself.
    shown = [line for line in text.splitlines() if not line.startswith("WARNING")]
    assert [record.getMessage() for record in caplog.records] == shown
    assert text.splitlines() == [
        "waiting for 2 of 2 devices",
        "pi joined with 24 samples (1 of 2 devices are here)",
        "nano joined with 24 samples (2 of 2 devices are here)",
        "nano lost its connection (1 of 2 devices are here)",
        "waiting for 1 of 2 devices; here: pi",
        "nano came back (2 of 2 devices are here)",
        "pi lost its connection; round 1 of 3 waits for it (1 of 2 devices are here)",
        "pi came back (2 of 2 devices are here)",
        "nano was turned away: its data has another shape",
        "round 1: tx2 gave no update: no answer within 60 s",
        "WARNING: device nano was revoked",
        "WARNING: the server has no examples",
        "round 1/3 took 3.0 s, 1 updates, loss 0.500, accuracy of the model sent out 25.0%",
    ]


def test_on_a_terminal_there_is_a_live_table(monkeypatch: pytest.MonkeyPatch) -> None:
    text, progress = tell(monkeypatch, terminal=True)

    assert "round 1/3 took 3.0 s" in text
    view = Console(width=100, file=io.StringIO(), record=True)
    view.print(progress._render())
    lines = view.export_text().splitlines()
    assert "measuring" in lines[0]
    assert any(line.split() == ["pi", "measuring", "25.0%", "2.5"] for line in lines)
    assert any(line.split() == ["tx2", "failed"] for line in lines)
    assert any(line.split() == ["nano", "revoked"] for line in lines)


def test_rounds_and_the_work_of_the_server_itself_have_bars_with_the_time_that_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now_s[0])
    monkeypatch.setattr(module, "Console", lambda stderr: Console(file=io.StringIO(), force_terminal=True, width=100))
    view = Console(width=100, file=io.StringIO(), record=True)

    with Progress(30, 2) as progress:
        progress(events.RoundClosed(1, {}, 3.0))
        for epoch in counted(range(4), "tuning the compression"):
            now_s[0] += 5.0
            if epoch == 1:
                view.print(progress._render())
    seen = view.export_text().splitlines()
    view.print(progress._render())

    assert "1 min 27 s left" in seen[0]
    assert "tuning the compression: 1 of 4" in seen[1]
    assert "30 s left" in seen[1]
    assert "tuning" not in view.export_text()


def test_without_a_terminal_nothing_is_said_of_work(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(3, 2):
        list(counted(range(4), "tuning the compression"))

    assert capsys.readouterr() == ("", "")


def test_the_broker_is_seen_to_go_and_come_back(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(3, 2)

    progress.watch(False)
    progress.watch(True)

    assert capsys.readouterr().err.splitlines() == [
        "the broker is gone; trying until it is back",
        "the broker is back",
    ]
