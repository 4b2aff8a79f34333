"""Tables of devices fit on a terminal and show only columns that say something."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from fedwright.cli.tables import device_table, figure_text, record_row
from fedwright.server_runtime.rounds.store.device_record import DeviceRecord

RECORD = DeviceRecord(
    "pi4-1",
    samples=158,
    rounds=2,
    accuracy_before=0.026,
    accuracy_after=1.0,
    task_s=1.2,
    cpu_s=1.44,
    peak_rss_bytes=82_000_000,
    bytes_up=680_000,
    bytes_down=1_000_000,
)


def shown(*records: DeviceRecord, profile: str | None = None) -> list[str]:
    """The lines of a table on a terminal of 80 columns."""
    rows = [record_row(record) | ({"profile": profile} if profile else {}) for record in records]
    console = Console(width=80, file=io.StringIO(), record=True)
    console.print(device_table("title", rows))
    return console.export_text().splitlines()


def test_a_line_per_device() -> None:
    # 0.6 s is the mean of the two rounds.
    assert shown(RECORD)[-1].split() == ["pi4-1", "158", "2.6%", "100.0%", "0.60", "1.4", "82", "0.68", "1.00"]


def test_what_was_not_measured_is_a_dash() -> None:
    assert shown(DeviceRecord("new"))[-1].split() == ["new", "0", "-", "-", "0.00", "0.0", "0.00", "0.00"]


@pytest.mark.parametrize(("width", "columns"), [(1.0, 9), (0.5, 10)], ids=["whole model", "half of it"])
def test_the_width_is_shown_where_it_differs(width: float, columns: int) -> None:
    assert len(shown(replace(RECORD, width=width))[-1].split()) == columns


def test_the_demo_table_fits_into_80_columns() -> None:
    line = shown(replace(RECORD, width=0.5), profile="raspberry-pi-4")[-1]
    assert " ".join(line.split()) == "pi4-1 raspberry-pi-4 158 0.50 2.6% 100.0% 0.60 1.4 82 0.68 1.00"


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("bytes_down", 173664.0, "down 0.17 MB"),
        ("accuracy_before", 0.9806, "accuracy before 98.1%"),
        ("macs", 320832.0, "0.32 M macs"),
        ("loss", 2.435e-06, "loss 2.435e-06"),
        ("updates", 2.0, "updates 2"),
    ],
)
def test_a_figure_is_read_by_people(name: str, value: float, text: str) -> None:
    assert figure_text(name, value) == text
