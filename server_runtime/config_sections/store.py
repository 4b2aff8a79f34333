"""The section [store] of a config: where a run keeps what it must not forget."""

from dataclasses import dataclass, field
from urllib.parse import urlsplit, urlunsplit

from fedwright.protocol.address import HIDDEN
from fedwright.protocol.errors import ConfigError
from fedwright.protocol.support.settings import hint

POSTGRES = ("postgresql", "postgres")


@dataclass(frozen=True)
class StoreSection:
    """Files in the run's folder, or engines that several servers share."""

    rounds: str | None = field(
        default=None,
        metadata=hint("postgresql://user@host/database: rounds there, so that servers can stand by; absent: SQLite"),
    )

    def __post_init__(self) -> None:
        """Check values."""
        if self.rounds is not None and urlsplit(self.rounds).scheme not in POSTGRES:
            raise ConfigError(
                "store.rounds must be an address such as postgresql://user@host:5432/database; leave it out for SQLite"
            )

    @property
    def database(self) -> str | None:
        """The address of the database; where the password was left out of a kept config, without it."""
        if self.rounds is None or urlsplit(self.rounds).password != HIDDEN:
            return self.rounds
        return without_password(self.rounds)


def without_password(url: str) -> str:
    """An address as it may be kept and shown."""
    parts = urlsplit(url)
    if parts.password is None:
        return url
    user, _, place = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{user.partition(':')[0]}@{place}"))
