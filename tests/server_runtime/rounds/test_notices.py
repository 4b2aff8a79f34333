"""What a person should know of a run: kept in its folder, logged, and told to whoever watches."""

import logging
from pathlib import Path

import pytest

from fedwright.server_runtime.rounds import events
from fedwright.server_runtime.rounds.notices import NOTICES, Notice, Notices, noticed, read_notices

METHOD = logging.getLogger("fedwright.server_runtime.methods.some")


def known(folder: Path) -> list[tuple[str, str, int, int]]:
    return [(notice.kind, notice.device or notice.text, notice.round, notice.times) for notice in read_notices(folder)]


def test_fates_and_warnings_outlive_the_run(tmp_path: Path) -> None:
    with noticed(tmp_path, events.ignore) as observe:
        observe(events.DeviceTurnedAway("nano", "its data has another shape"))
        observe(events.TaskFailed(1, "pi", "pi refused: needs 9 MB, has 5 MB"))
        observe(events.LessOffered(1, "pi", "needs 9 MB, has 5 MB"))
        observe(events.TaskFailed(1, "tx2", "no answer within 60 s"))
        observe(events.TaskFailed(3, "tx2", "no answer within 70 s"))
        METHOD.warning("the server has no examples")

    assert known(tmp_path) == [
        ("turned away", "nano", 0, 1),
        ("offered less", "pi", 1, 1),
        ("no update", "tx2", 3, 2),
        ("warning", "the server has no examples", 0, 1),
    ]
    assert [notice.line() for notice in read_notices(tmp_path)][2] == (
        "tx2: no update in round 3 (2 times): no answer within 70 s"
    )


def test_a_resumed_run_goes_on_with_what_was_known(tmp_path: Path) -> None:
    for number in (1, 2):
        with noticed(tmp_path, events.ignore) as observe:
            observe(events.TaskFailed(number, "pi", "late"))

    assert known(tmp_path) == [("no update", "pi", 2, 2)]


def test_whoever_watches_hears_warnings_while_they_happen(tmp_path: Path) -> None:
    heard: list[events.Event] = []

    with noticed(tmp_path, heard.append):
        METHOD.warning("device %s does not train", "pi")
        METHOD.info("all is well")
        assert heard == [events.Warned("device pi does not train")]
        assert read_notices(tmp_path)[0].text == "device pi does not train"
    METHOD.warning("afterwards")

    assert len(heard) == 1


def test_a_rejected_update_is_told_once(tmp_path: Path) -> None:
    heard: list[events.Event] = []

    with noticed(tmp_path, heard.append) as observe:
        logging.getLogger("fedwright.server_runtime.rounds.task_tracker").warning("update rejected")
        observe(events.TaskFailed(1, "pi", "update rejected"))

    assert heard == [events.TaskFailed(1, "pi", "update rejected")]


def test_events_are_logged_with_device_and_round(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with noticed(tmp_path, events.ignore) as observe:
        observe(events.TaskFailed(2, "pi", "late"))

    record = caplog.records[0]
    assert (record.levelname, record.getMessage()) == ("WARNING", "device pi round 2: no update: late")
    assert (vars(record)["device"], vars(record)["round"]) == ("pi", 2)


def test_many_at_once_are_written_once_and_nothing_is_lost(tmp_path: Path) -> None:
    now = [0.0]
    notices = Notices(tmp_path, events.ignore, clock=lambda: now[0])
    for device in ("a", "b", "c"):
        notices(events.TaskFailed(1, device, "late"))

    assert len(read_notices(tmp_path)) == 1
    now[0] = 2.0
    notices(events.DeviceLost("a"))
    assert len(read_notices(tmp_path)) == 3


def test_a_folder_that_cannot_be_written_does_not_end_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    notices = Notices(tmp_path / "gone", events.ignore)

    notices(events.TaskFailed(1, "pi", "late"))

    assert "cannot be written" in caplog.text


def test_a_damaged_file_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / NOTICES).write_text("{")

    assert read_notices(tmp_path) == []
    assert Notice("warning", "w").line() == "warning: w"
