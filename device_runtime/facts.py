"""What this device is and how it is doing: board, memory, temperature, throttling, battery.

Everything is optional: a virtual machine has none of the sensors, a container hides half of them. `root` is the
file system to look at, so that a board can be described by a folder in a test.
"""

import ctypes
import importlib.util
import os
import platform
import re
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedwright.protocol.messages import Board

ROOT = Path("/")

# cgroup v1 writes a number near 2^63 when there is no limit.
_NO_LIMIT = 2**60
# What counts as used in a control group, yet is given back by the kernel when a process asks for more.
_RECLAIMABLE = ("inactive_file", "active_file", "slab_reclaimable")

# Distributions that install the package `onnxruntime`.
RUNTIMES = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-training-cpu", "onnxruntime-training")

_PI_PROBLEMS = {0: "under-voltage", 1: "frequency capped", 2: "throttled", 3: "soft temperature limit"}


@dataclass(frozen=True)
class Health:
    """How a device is doing now; None and empty mean that it cannot tell."""

    temperature_c: float | None = None
    throttled: tuple[str, ...] = ()
    battery_ratio: float | None = None
    on_battery: bool | None = None
    power_mode: str | None = None
    clocks: "Clocks | None" = None


@dataclass(frozen=True)
class Clocks:
    """Of the fastest core: its clock now, the range it may have, and who decides."""

    now_hz: float
    least_hz: float | None = None
    most_hz: float | None = None
    governor: str | None = None


def board(*, threads: int = 0, profile: str = "", root: Path = ROOT) -> "Board":
    """What a report says about this device."""
    # Imported here so that the doctor works where msgspec is what is missing.
    from fedwright.protocol.messages import Board

    return Board(
        model=board_model(root),
        machine=platform.machine(),
        cores=cores(),
        ram_bytes=ram_bytes(root),
        runtime=runtime(),
        threads=threads or cores(),
        profile=profile,
        clock_hz=int(_most_hz(clocks(root))),
    )


def board_model(root: Path = ROOT) -> str:
    """Name of the board: device tree (ARM boards), else DMI (PCs), else the processor."""
    tree = _text(root / "proc/device-tree/model")
    if tree:
        return tree
    vendor, product = (_text(root / "sys/class/dmi/id" / name) for name in ("sys_vendor", "product_name"))
    if product:
        return f"{vendor or ''} {product}".strip()
    for key in ("Model", "model name", "Hardware"):
        found = _field(root / "proc/cpuinfo", key)
        if found:
            return found
    return platform.machine() or "unknown"


def cores() -> int:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def runtime() -> str:
    """Name and version of the installed onnxruntime, which is not loaded for it."""
    # Read from the package's own file: importing it costs an agent 18 MB, importlib.metadata 4 MB.
    found = importlib.util.find_spec("onnxruntime")
    for folder in () if found is None else found.submodule_search_locations or ():
        text = _text(Path(folder, "capi", "build_and_package_info.py")) or ""
        said = dict(re.findall(r"^(\w+)\s*=\s*['\"]([^'\"]*)['\"]", text, re.MULTILINE))
        if "package_name" in said and "__version__" in said:
            return f"{said['package_name']} {said['__version__']}"
    return "none"


def ram_bytes(root: Path = ROOT) -> int:
    """Memory of the board, or less when a limit says so."""
    limits = [limit for limit, _ in (*_group_limits(root), *_process_limits(root))]
    return min([_meminfo(root, "MemTotal"), *limits])


def free_bytes(root: Path = ROOT) -> int:
    """What this process can still take before something says no."""
    room = [limit - used for limit, used in (*_group_limits(root), *_process_limits(root))]
    return max(0, min([_meminfo(root, "MemAvailable"), *room]))


def process_room_bytes(root: Path = ROOT) -> int | None:
    """What the limits of this process alone leave it; None without any."""
    room = [limit - used for limit, used in _process_limits(root)]
    return max(0, min(room)) if room else None


def data_bytes(root: Path = ROOT) -> int:
    """Memory of this process that counts for RLIMIT_DATA, without what malloc keeps for later."""
    used = _kilobytes(root / "proc/self/status", "VmData") or 0
    return used - min(used, _heap_free_bytes())


def resident_bytes(pid: int, root: Path = ROOT) -> int:
    """Memory that a process has for itself alone; 0 when it is gone."""
    status = root / f"proc/{pid}/status"
    return _kilobytes(status, "RssAnon") or _kilobytes(status, "VmRSS") or 0


def peak_rss_bytes(root: Path = ROOT) -> int:
    """The most resident memory this process ever had."""
    # ru_maxrss survives exec and so may be that of the parent; VmHWM is this program's own.
    peak = _kilobytes(root / "proc/self/status", "VmHWM")
    return peak if peak is not None else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def health(root: Path = ROOT) -> Health:
    """All sensors there are."""
    ratio, on_battery = _battery(root)
    return Health(
        temperature_c=temperature_c(root),
        throttled=throttled(root),
        battery_ratio=ratio,
        on_battery=on_battery,
        power_mode=_jetson_power_mode() if "jetson" in board_model(root).lower() else None,
        clocks=clocks(root),
    )


def clocks(root: Path = ROOT) -> Clocks | None:
    """The clocks of the core with the highest limit; only what it has now where the kernel does not scale them."""
    folders = sorted((root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq"))
    found = [known for folder in folders if (known := _clock(folder)) is not None]
    if found:
        return max(found, key=_most_hz)
    now_mhz = _field(root / "proc/cpuinfo", "cpu MHz")
    return None if now_mhz is None else Clocks(float(now_mhz) * 1e6)


def _clock(folder: Path) -> Clocks | None:
    now = _number(folder / "scaling_cur_freq") or _number(folder / "cpuinfo_cur_freq")
    if now is None:
        return None
    least, most = (_number(folder / f"cpuinfo_{end}_freq") for end in ("min", "max"))
    # The kernel counts in kHz.
    least_hz, most_hz = (None if khz is None else khz * 1e3 for khz in (least, most))
    return Clocks(now * 1e3, least_hz, most_hz, _text(folder / "scaling_governor"))


def _most_hz(known: Clocks | None) -> float:
    return 0.0 if known is None else known.most_hz or known.now_hz


def temperature_c(root: Path = ROOT) -> float | None:
    """The hottest thermal zone."""
    found = [_number(path) for path in sorted((root / "sys/class/thermal").glob("thermal_zone*/temp"))]
    # A zone without a working sensor says something far outside what silicon survives.
    degrees = [value / 1000 for value in found if value is not None and -40_000 < value < 150_000]
    return max(degrees, default=None)


def throttled(root: Path = ROOT) -> tuple[str, ...]:
    """What a Raspberry Pi's firmware holds back right now."""
    text = _text(root / "sys/devices/platform/soc/soc:firmware/get_throttled")
    try:
        bits = int(text or "0", 16)
    except ValueError:
        return ()
    return tuple(name for bit, name in _PI_PROBLEMS.items() if bits >> bit & 1)


def _battery(root: Path) -> tuple[float | None, bool | None]:
    """Charge and whether it is being used up, of the first battery."""
    for supply in sorted((root / "sys/class/power_supply").glob("*")):
        if _text(supply / "type") == "Battery":
            percent, status = _number(supply / "capacity"), _text(supply / "status")
            return (None if percent is None else percent / 100), (None if status is None else status == "Discharging")
    return None, None


def _jetson_power_mode() -> str | None:
    """The power mode of a Jetson by jetson-stats, when that is installed and its service runs."""
    try:
        from jtop import JtopException, jtop
    except ImportError:
        return None
    try:
        with jtop() as jetson:
            return str(jetson.nvpmodel) if jetson.ok() else None
    except (JtopException, OSError):
        return None


def _meminfo(root: Path, key: str) -> int:
    found = _kilobytes(root / "proc/meminfo", key)
    if found is not None:
        return found
    import psutil

    memory = psutil.virtual_memory()
    return int(memory.total if key == "MemTotal" else memory.available)


def _process_limits(root: Path) -> Iterator[tuple[int, int]]:
    """(limit, used) of the resource limits that make an allocation fail."""
    for kind, field in ((resource.RLIMIT_DATA, "VmData"), (resource.RLIMIT_AS, "VmSize")):
        limit, _ = resource.getrlimit(kind)
        if limit != resource.RLIM_INFINITY:
            used = _kilobytes(root / "proc/self/status", field) or 0
            yield limit, used - min(used, _heap_free_bytes())


class _MallocInfo(ctypes.Structure):
    """struct mallinfo2 of glibc: ten sizes, of which the ninth is what lies free in its heaps."""

    _fields_ = (("sizes", ctypes.c_size_t * 10),)


def _heap_free_bytes() -> int:
    """Memory that counts as taken but is only kept by malloc for the next allocation."""
    mallinfo2 = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo2 is None:
        return 0
    mallinfo2.restype = _MallocInfo
    return int(mallinfo2().sizes[8])


def _group_limits(root: Path) -> Iterator[tuple[int, int]]:
    """(limit, used) of the control groups of this process, from its own up to the top; version 2, then 1."""
    for line in (_text(root / "proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if not controllers:
            yield from _limits_above(root / "sys/fs/cgroup", group, ("memory.max", "memory.current"))
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
            yield from _limits_above(root / "sys/fs/cgroup/memory", group, names, below="total_")


def _limits_above(top: Path, group: str, names: tuple[str, str], *, below: str = "") -> Iterator[tuple[int, int]]:
    """The same for one hierarchy; `below` begins the names of figures that count the groups inside."""
    # Inside a container the path names a place that is not there, and the limit stands at the top.
    inner = Path(group.lstrip("/"))
    for folder in (top / inner, *(top / parent for parent in inner.parents)):
        limit, used = (_number(folder / name) for name in names)
        if limit is not None and used is not None and limit < _NO_LIMIT:
            found = (_field(folder / "memory.stat", below + name, separator=" ") or "" for name in _RECLAIMABLE)
            cache = sum(int(value) for value in found if value.isdigit())
            yield int(limit), max(0, int(used) - cache)


def _text(path: Path) -> str | None:
    """Stripped content of a small file, None when it cannot be read or is empty."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip("\0 \t\n") or None
    except OSError:
        return None


def _number(path: Path) -> float | None:
    try:
        return float(_text(path) or "")
    except ValueError:
        return None


def _field(path: Path, key: str, *, separator: str = ":") -> str | None:
    """Value of the first line `key<separator> value`."""
    for line in (_text(path) or "").splitlines():
        name, found, value = line.partition(separator)
        if found and name.strip() == key:
            return value.strip() or None
    return None


def _kilobytes(path: Path, key: str) -> int | None:
    value = (_field(path, key) or "").partition(" ")[0]
    return int(value) * 1024 if value.isdigit() else None
