"""Facts of a device, read from folders that look like boards."""

import resource
import sys
from pathlib import Path

import numpy as np
import pytest

from fedwright.device_runtime import facts
from fedwright.protocol.messages import Board


def tree(root: Path, files: dict[str, str]) -> Path:
    """A file system in a folder."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


MEMORY = {"proc/meminfo": "MemTotal:       4000000 kB\nMemFree: 1 kB\nMemAvailable:   3000000 kB\n"}


@pytest.mark.parametrize(
    ("files", "model"),
    [
        pytest.param({"proc/device-tree/model": "Raspberry Pi 4 Model B Rev 1.5\0"}, "Raspberry Pi 4 Model B Rev 1.5"),
        pytest.param(
            {"sys/class/dmi/id/sys_vendor": "LENOVO\n", "sys/class/dmi/id/product_name": "20KH\n"}, "LENOVO 20KH"
        ),
        pytest.param({"proc/cpuinfo": "processor : 0\nmodel name\t: Some CPU @ 2 GHz\n"}, "Some CPU @ 2 GHz"),
    ],
    ids=["device tree", "dmi", "cpuinfo"],
)
def test_board_model(tmp_path: Path, files: dict[str, str], model: str) -> None:
    assert facts.board_model(tree(tmp_path, files)) == model


def test_an_empty_machine_still_has_a_name(tmp_path: Path) -> None:
    assert facts.board_model(tmp_path)
    assert facts.health(tmp_path) == facts.Health()


def test_sensors_of_a_raspberry_pi(tmp_path: Path) -> None:
    tree(
        tmp_path,
        {
            "sys/class/thermal/thermal_zone0/temp": "61234\n",
            "sys/class/thermal/thermal_zone1/temp": "-274000\n",
            "sys/devices/platform/soc/soc:firmware/get_throttled": "50005\n",
            "sys/class/power_supply/AC/type": "Mains",
            "sys/class/power_supply/BAT0/type": "Battery",
            "sys/class/power_supply/BAT0/capacity": "37",
            "sys/class/power_supply/BAT0/status": "Discharging",
        },
    )
    found = facts.health(tmp_path)
    assert found.temperature_c == pytest.approx(61.234)
    assert found.throttled == ("under-voltage", "throttled")
    assert (found.battery_ratio, found.on_battery) == (0.37, True)


CPU = "sys/devices/system/cpu"


def test_clocks_are_those_of_the_fastest_core(tmp_path: Path) -> None:
    tree(
        tmp_path,
        {
            f"{CPU}/cpu0/cpufreq/scaling_cur_freq": "600000\n",
            f"{CPU}/cpu0/cpufreq/cpuinfo_min_freq": "600000\n",
            f"{CPU}/cpu0/cpufreq/cpuinfo_max_freq": "1500000\n",
            f"{CPU}/cpu4/cpufreq/scaling_cur_freq": "1800000\n",
            f"{CPU}/cpu4/cpufreq/cpuinfo_min_freq": "500000\n",
            f"{CPU}/cpu4/cpufreq/cpuinfo_max_freq": "2400000\n",
            f"{CPU}/cpu4/cpufreq/scaling_governor": "ondemand\n",
            f"{CPU}/cpufreq/policy0": "",
        },
    )

    assert facts.health(tmp_path).clocks == facts.Clocks(1.8e9, 5e8, 2.4e9, "ondemand")
    assert facts.board(root=tmp_path).clock_hz == 2_400_000_000


def test_a_machine_that_does_not_scale_its_clock_tells_what_it_has(tmp_path: Path) -> None:
    tree(tmp_path, {"proc/cpuinfo": "processor: 0\ncpu MHz\t\t: 2793.436\n"})

    assert facts.clocks(tmp_path) == facts.Clocks(2.793436e9)


def test_a_jetson_without_its_statistics_service_has_no_power_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jtop", None)
    tree(tmp_path, {"proc/device-tree/model": "NVIDIA Jetson Nano Developer Kit\0"})
    assert facts.health(tmp_path).power_mode is None


def test_memory_without_limits(tmp_path: Path) -> None:
    tree(tmp_path, MEMORY)
    assert facts.ram_bytes(tmp_path) == 4_000_000 * 1024
    assert facts.free_bytes(tmp_path) == 3_000_000 * 1024


def test_memory_under_a_control_group_of_version_2(tmp_path: Path) -> None:
    tree(
        tmp_path,
        {
            **MEMORY,
            "proc/self/cgroup": "0::/devices/pi\n",
            "sys/fs/cgroup/devices/pi/memory.max": "max\n",
            "sys/fs/cgroup/devices/pi/memory.current": "1\n",
            "sys/fs/cgroup/devices/memory.max": "200000000\n",
            "sys/fs/cgroup/devices/memory.current": "150000000\n",
            "sys/fs/cgroup/devices/memory.stat": "anon 5\ninactive_file 30000000\n",
        },
    )
    assert facts.ram_bytes(tmp_path) == 200_000_000
    assert facts.free_bytes(tmp_path) == 80_000_000


def test_memory_under_a_control_group_of_version_1_in_a_container(tmp_path: Path) -> None:
    tree(
        tmp_path,
        {
            **MEMORY,
            "proc/self/cgroup": "4:cpu,memory:/docker/abc\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "100000000\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "120000000\n",
        },
    )
    assert facts.ram_bytes(tmp_path) == 100_000_000
    assert facts.free_bytes(tmp_path) == 0


@pytest.mark.parametrize(
    ("group", "folder", "names", "below"),
    [
        pytest.param("0::/pi\n", "sys/fs/cgroup/pi", ("memory.max", "memory.current"), "", id="version 2"),
        pytest.param(
            "4:memory:/pi\n",
            "sys/fs/cgroup/memory/pi",
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
            "total_",
            id="version 1",
        ),
    ],
)
def test_files_that_the_kernel_keeps_in_memory_are_free(
    tmp_path: Path, group: str, folder: str, names: tuple[str, str], below: str
) -> None:
    # Of 190 MB used, 30 + 120 + 10 are files and names of files; files that are locked or in shared memory are not.
    shares = {"inactive_file": 30, "active_file": 120, "slab_reclaimable": 10, "unevictable": 5, "shmem": 7}
    stat = "".join(f"{below}{name} {size}000000\n" for name, size in shares.items())
    limits = {f"{folder}/{names[0]}": "200000000\n", f"{folder}/{names[1]}": "190000000\n"}
    tree(tmp_path, {**MEMORY, "proc/self/cgroup": group, **limits, f"{folder}/memory.stat": stat})

    assert facts.free_bytes(tmp_path) == 170_000_000


def test_a_data_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree(tmp_path, {**MEMORY, "proc/self/status": "VmData:\t  100000 kB\nVmHWM:\t 7 kB\n"})
    limits = {resource.RLIMIT_DATA: (300_000 * 1024, -1), resource.RLIMIT_AS: (resource.RLIM_INFINITY, -1)}
    monkeypatch.setattr(resource, "getrlimit", limits.__getitem__)
    monkeypatch.setattr(facts, "_heap_free_bytes", lambda: 5)
    assert facts.ram_bytes(tmp_path) == 300_000 * 1024
    assert facts.free_bytes(tmp_path) == 200_000 * 1024 + 5
    assert facts.peak_rss_bytes(tmp_path) == 7 * 1024


def test_this_machine() -> None:
    board = facts.board(threads=3, profile="pi-4")
    assert isinstance(board, Board)
    assert (board.threads, board.profile) == (3, "pi-4")
    assert facts.board().threads == board.cores >= 1
    assert 0 < facts.free_bytes() <= board.ram_bytes
    assert board.runtime.startswith("onnxruntime")


def test_peak_memory_grows_with_what_is_touched() -> None:
    before = facts.peak_rss_bytes()
    block = np.ones(before + 50_000_000, np.uint8)
    assert facts.peak_rss_bytes() >= block.nbytes
