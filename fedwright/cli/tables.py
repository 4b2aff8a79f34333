"""Tables of devices, for people and for programs."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table

if TYPE_CHECKING:
    from fedwright.server_runtime.rounds.store.device_record import DeviceRecord

MB = 1e6
NUMBERS: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("sam-\nples", "samples", str),
    ("width", "width", lambda value: f"{value:.2f}"),
    ("accur.\nbefore", "accuracy_before", lambda value: "-" if value is None else f"{value:.1%}"),
    ("accur.\nafter", "accuracy_after", lambda value: "-" if value is None else f"{value:.1%}"),
    ("s per\nround", "round_s", lambda value: f"{value:.2f}"),
    ("CPU\ns", "cpu_s", lambda value: f"{value:.1f}"),
    ("peak\nMB", "peak_rss_bytes", lambda value: f"{value / MB:.0f}"),
    ("up\nMB", "bytes_up", lambda value: f"{value / MB:.2f}"),
    ("down\nMB", "bytes_down", lambda value: f"{value / MB:.2f}"),
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
        "macs": record.macs,
    }


def figure_text(name: str, value: float) -> str:
    """One figure of a round as a person reads it; `--json` has it in full."""
    if name.startswith("bytes_"):
        return f"{name.removeprefix('bytes_')} {value / MB:.2f} MB"
    if name.startswith("accuracy"):
        return f"{name.replace('_', ' ')} {value:.1%}"
    return f"{value / 1e6:.2f} M macs" if name == "macs" else f"{name.replace('_', ' ')} {value:.4g}"


def device_table(title: str, rows: Sequence[dict[str, Any]]) -> Table:
    """One line per device; the width only where it is not 1 for all, memory only where it was measured."""
    texts = ["id", "profile"] if any("profile" in row for row in rows) else ["id"]
    narrow = any(row["width"] != 1 for row in rows)
    measured = any(row["peak_rss_bytes"] for row in rows)
    needless = {"width"} - ({"width"} if narrow else set()) | (set() if measured else {"peak_rss_bytes"})
    numbers = [column for column in NUMBERS if column[1] not in needless]
    table = plain_table(title, ["device", *texts[1:]], [heading for heading, _, _ in numbers])
    for row in rows:
        table.add_row(*(row[key] for key in texts), *(show(row[key]) for _, key, show in numbers))
    return table


def plain_table(title: str, texts: Sequence[str], numbers: Sequence[str]) -> Table:
    """An empty table that fits on a terminal of 80 columns."""
    table = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, padding=0)
    table.pad_edge, table.show_edge, table.collapse_padding = False, False, True
    for column in texts:
        table.add_column(column)
    for column in numbers:
        table.add_column(column, justify="right")
    return table
