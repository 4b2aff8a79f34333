"""Every profile and fleet in the package loads, and says where each number comes from."""

import pytest

from fedwright.device_runtime.emulate.profiles import DeviceProfile, load_fleet, load_profile, names
from fedwright.protocol.errors import ConfigError
from fedwright.protocol.support.settings import from_dict

DEVICES = names("devices")
FLEETS = names("fleets")
VALUE = {"value": 1, "basis": "nominal", "source": "a data sheet"}


def test_the_devices_of_the_project_are_there() -> None:
    assert {
        "raspberry-pi-3",
        "raspberry-pi-4",
        "raspberry-pi-5",
        "jetson-nano",
        "jetson-tx2",
        "jetson-orin-nano",
        "phone",
        "laptop",
        "pc",
    } <= set(DEVICES)


@pytest.mark.parametrize("name", DEVICES)
def test_a_profile_gives_limits_that_can_be_enforced(name: str) -> None:
    profile = load_profile(name)

    assert 0.1 <= profile.cpu_share <= 1.0
    assert 2**28 <= profile.memory_bytes < profile.ram_bytes.value


@pytest.mark.parametrize("name", FLEETS)
def test_a_fleet_names_profiles_that_exist(name: str) -> None:
    assert set(load_fleet(name).profiles()) <= set(DEVICES)


def test_the_demo_fleet_has_eight_devices_and_can_be_cut_or_repeated() -> None:
    fleet = load_fleet("demo")

    assert len(list(fleet.profiles())) == 8
    assert list(fleet.profiles(3)) == ["raspberry-pi-4", "raspberry-pi-4", "raspberry-pi-5"]
    assert list(fleet.profiles(9))[8] == "raspberry-pi-4"


def test_the_fedconv_fleet_is_table_1_of_its_paper() -> None:
    fleet = load_fleet("fedconv")
    ratios = [load_profile(name).shrinkage_ratio for name in fleet.profiles()]

    assert len(ratios) == 20
    # 4 PCs at 1.0, 4 laptops and 4 TX2 at 0.75, 4 Nanos at 0.5, 4 Raspberry Pis at 0.25
    assert sum(ratio.value for ratio in ratios if ratio is not None) == 4 * 1.0 + 8 * 0.75 + 4 * 0.5 + 4 * 0.25


def test_slower_devices_get_smaller_shares() -> None:
    order = ["raspberry-pi-3", "jetson-nano", "raspberry-pi-4", "jetson-tx2", "raspberry-pi-5", "laptop"]
    shares = [load_profile(name).cpu_share for name in order]

    assert shares == sorted(shares)


def test_an_unknown_profile_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'raspberry-pi-4'"):
        load_profile("rasberry-pi-4")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"basis": "guess"}, "basis is 'guess'; valid are derived, measured, nominal", id="basis"),
        pytest.param({"source": ""}, "source is empty", id="source"),
        pytest.param({"value": 0}, "value is 0.0 but must be above 0", id="value"),
    ],
)
def test_a_number_without_a_basis_is_turned_away(change: dict[str, object], message: str) -> None:
    keys = ("clock_hz", "ram_bytes", "agent_bytes", "cpu_gflops")
    data = {"name": "x", "summary": "x", "short": "x", "cores": VALUE | change} | dict.fromkeys(keys, VALUE)

    with pytest.raises(ConfigError, match=message):
        from_dict(DeviceProfile, data, where="profile x")
