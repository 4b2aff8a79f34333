"""Where work is done, as a config says it; what cannot be meant is refused before anything starts."""

import socket
import sys

import pytest
import ray

from fedwright.protocol.errors import ConfigError, EngineError
from fedwright.server_runtime.config_sections.engine import EngineSection
from fedwright.server_runtime.engine.cluster import SETTINGS, check_ray, connected


@pytest.fixture(autouse=True)
def _settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is set for Ray goes with the test."""
    for name, value in SETTINGS.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("address", ["auto", "local", "10.0.0.5:6379", "host:6379"])
def test_an_address_is_taken(address: str) -> None:
    assert EngineSection("ray", address).address == address


@pytest.mark.parametrize("address", ["", "host", "ray://host:10001", ":6379", "host:port"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="must be 'auto', 'local' or a host and a port"):
        EngineSection("ray", address)


def test_no_workers_are_refused() -> None:
    with pytest.raises(ConfigError, match="workers"):
        EngineSection("ray", workers=0)


def test_a_host_without_ray_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)

    with pytest.raises(ConfigError, match=r"Ray is not installed; run `pip install 'fedwright\[ray\]'`"):
        check_ray()


def test_a_cluster_that_is_not_there_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**settings: object) -> None:
        raise ConnectionError(f"Could not find any running Ray instance at {settings['address']}")

    monkeypatch.setattr(ray, "init", refuse)

    with (
        pytest.raises(EngineError, match="the Ray cluster of this machine cannot be reached; start one with"),
        connected(EngineSection("ray")),
    ):
        pass


def test_nobody_at_an_address_is_noticed_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"

    with (
        pytest.raises(EngineError, match=f"the Ray cluster at {address} cannot be reached; look at engine.address"),
        connected(EngineSection("ray", address)),
    ):
        pass
