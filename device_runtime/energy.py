"""What a task cost in joules, on boards that tell: a counter of the processor, or the meter on a Jetson's supply."""

import time
from pathlib import Path

from fedwright.device_runtime.facts import ROOT

# The supply of the whole board is the channel with this label.
SUPPLY = "VDD_IN"


class EnergyMeter:
    """Measures from its making on. A counter is exact; of a power meter the first and the last reading are used."""

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        self._counters = _counters(root)
        self._power_w = _supply_w(root)
        self._began_s = time.monotonic()

    def joules(self) -> float | None:
        """Energy of the whole board, or of its processors; None where nothing tells."""
        after = _counters(self._root)
        if self._counters and after.keys() == self._counters.keys():
            return sum(_rise(self._counters[path], after[path], path) for path in after) / 1e6
        now_w = _supply_w(self._root)
        if self._power_w is None or now_w is None:
            return None
        return (self._power_w + now_w) / 2 * (time.monotonic() - self._began_s)


def _counters(root: Path) -> dict[Path, int]:
    """Microjoules of every processor package; the parts of a package are counted in it already."""
    found = {}
    for folder in sorted(root.glob("sys/class/powercap/intel-rapl:*")):
        value = _integer(folder / "energy_uj")
        if folder.name.count(":") == 1 and value is not None:
            found[folder] = value
    return found


def _rise(before: int, after: int, folder: Path) -> int:
    """How far a counter went; it starts again at zero when it is full."""
    if after >= before:
        return after - before
    return after - before + (_integer(folder / "max_energy_range_uj") or 0)


def _supply_w(root: Path) -> float | None:
    """Power that a Jetson draws now: millivolts times milliamperes of the channel that feeds it all."""
    for folder in sorted(root.glob("sys/class/hwmon/hwmon*")):
        for label in sorted(folder.glob("in*_label")):
            number = label.name[2 : -len("_label")]
            volts, amperes = _integer(folder / f"in{number}_input"), _integer(folder / f"curr{number}_input")
            if _text(label) == SUPPLY and volts is not None and amperes is not None:
                return volts * amperes / 1e6
    return None


def _integer(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text is not None and text.isdigit() else None


def _text(path: Path) -> str | None:
    # Some systems let only root read the counters.
    try:
        return path.read_text().strip()
    except OSError:
        return None
