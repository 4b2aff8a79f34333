"""Packages that a config needs beside the server's own, looked for before anybody waits for devices."""

from importlib.util import find_spec
from typing import NamedTuple

from fedwright.protocol.errors import ConfigError
from fedwright.server_runtime.config import RunConfig


class Need(NamedTuple):
    """What a setting needs: a package and the extra of ours that brings it; None as long as nothing is needed."""

    setting: str
    value: str | None
    package: str
    extra: str


def check_accounting(config: RunConfig) -> None:
    """Raise ConfigError where privacy is to be accounted for and nothing here can."""
    kind = config.privacy.kind
    _check([Need("privacy.kind", None if kind == "none" else kind, "dp_accounting", "private")])


def check_stores(config: RunConfig) -> None:
    """Raise ConfigError where rounds or blobs are to lie in what nothing here can speak with."""
    database, bucket = config.store.database, config.store.blobs
    _check(
        [
            Need("store.rounds", None if database is None else "a database", "psycopg", "postgres"),
            Need("store.blobs", bucket, "obstore", "s3"),
        ]
    )


def check_engine(config: RunConfig) -> None:
    """Raise ConfigError where the machines of a cluster are to work and nothing here can ask them."""
    kind = config.engine.kind
    _check([Need("engine.kind", None if kind == "local" else kind, "ray", "ray")])


def _check(needs: list[Need]) -> None:
    for need in needs:
        if need.value is not None and find_spec(need.package) is None:
            raise ConfigError(
                f"{need.setting} is {need.value}, which needs the package {need.package}; install it with "
                f'pip install "fedwright[{need.extra}]", or leave {need.setting} out'
            )
