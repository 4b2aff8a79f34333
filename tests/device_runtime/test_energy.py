"""Energy is told where a board has a counter or a meter, and nowhere else."""

from pathlib import Path

import pytest

from fedwright.device_runtime.energy import EnergyMeter


def write(path: Path, text: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def test_a_board_without_sensors_tells_nothing(tmp_path: Path) -> None:
    assert EnergyMeter(tmp_path).joules() is None


def test_packages_are_added_and_their_parts_are_not(tmp_path: Path) -> None:
    counters = [tmp_path / f"sys/class/powercap/intel-rapl:{name}/energy_uj" for name in ("0", "1", "0:0")]
    for counter in counters:
        write(counter, 1_000_000)
    meter = EnergyMeter(tmp_path)
    for counter in counters:
        write(counter, 3_500_000)

    assert meter.joules() == pytest.approx(5.0)


def test_a_counter_that_starts_again_is_not_negative(tmp_path: Path) -> None:
    folder = tmp_path / "sys/class/powercap/intel-rapl:0"
    write(folder / "max_energy_range_uj", 10_000_000)
    write(folder / "energy_uj", 9_000_000)
    meter = EnergyMeter(tmp_path)
    write(folder / "energy_uj", 1_000_000)

    assert meter.joules() == pytest.approx(2.0)


def test_a_jetson_tells_the_power_of_its_supply(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "sys/class/hwmon/hwmon3"
    for number, label, milliamperes in (("1", "VDD_CPU_GPU_CV", 9_000), ("2", "VDD_IN", 1_000)):
        write(folder / f"in{number}_label", label)
        write(folder / f"in{number}_input", 5_000)
        write(folder / f"curr{number}_input", milliamperes)
    clock = iter([100.0, 104.0])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    meter = EnergyMeter(tmp_path)
    write(folder / "curr2_input", 2_000)

    # From 5 W to 10 W over four seconds.
    assert meter.joules() == pytest.approx(30.0)


def test_what_may_not_be_read_counts_as_absent(tmp_path: Path) -> None:
    (tmp_path / "sys/class/powercap/intel-rapl:0/energy_uj").mkdir(parents=True)

    assert EnergyMeter(tmp_path).joules() is None
