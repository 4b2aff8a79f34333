"""Tables of devices, for people and for programs."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table

if TYPE_CHECKING:
    from fedwright.server_runtime.evaluate.records import DeviceRecord

MB = 1e6
COLUMNS = (
    "samples",
    "width",
    "accur.\nbefore",
    "accur.\nafter",
    "s per\nround",
    "CPU\ns",
    "peak\nMB",
    "up\nMB",
    "down\nMB",
)


def record_row(record: "DeviceRecord") -> dict[str, Any]:
    """What a device did over a run; scripts rely on these keys."""
    return {
        "id": record.device,
        "samples": record.samples,
        "width": record.width,
        "accuracy_before": record.accuracy_before,
        "accuracy_after": record.accuracy_after,
        "round_s": record.round_s,
        "cpu_s": record.cpu_s,
        "peak_rss_bytes": record.peak_rss_bytes,
        "bytes_up": record.bytes_up,
        "bytes_down": record.bytes_down,
    }


def device_table(title: str, rows: Sequence[dict[str, Any]]) -> Table:
    """One line per device."""
    with_profile = any("profile" in row for row in rows)
    table = plain_table(title, ["device", *(["profile"] if with_profile else [])], COLUMNS)
    for row in rows:
        table.add_row(
            row["id"],
            *([row["profile"]] if with_profile else []),
            str(row["samples"]),
            f"{row['width']:.2f}",
            _percent(row["accuracy_before"]),
            _percent(row["accuracy_after"]),
            f"{row['round_s']:.2f}",
            f"{row['cpu_s']:.1f}",
            f"{row['peak_rss_bytes'] / MB:.0f}",
            f"{row['bytes_up'] / MB:.2f}",
            f"{row['bytes_down'] / MB:.2f}",
        )
    return table


def plain_table(title: str, texts: Sequence[str], numbers: Sequence[str]) -> Table:
    """An empty table that fits on a terminal of 80 columns."""
    table = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD)
    table.pad_edge, table.show_edge, table.collapse_padding = False, False, True
    for column in texts:
        table.add_column(column)
    for column in numbers:
        table.add_column(column, justify="right")
    return table


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
