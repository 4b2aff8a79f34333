"""The section [store] of a config: where a run keeps what it must not forget."""

import re
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit, urlunsplit

from fedwright.protocol.address import HIDDEN
from fedwright.protocol.errors import ConfigError
from fedwright.protocol.support.settings import hint

POSTGRES = ("postgresql", "postgres")
_BUCKET = re.compile(r"(s3|gs|az)://[A-Za-z0-9][A-Za-z0-9._\-]{1,62}(/[A-Za-z0-9._=\-]+)*/?")


@dataclass(frozen=True)
class StoreSection:
    """Files in the run's folder, or engines that several servers share."""

    rounds: str | None = field(
        default=None,
        metadata=hint("postgresql://user@host/database: rounds there, so that servers can stand by; absent: SQLite"),
    )

    blobs: str | None = field(
        default=None,
        metadata=hint("s3://bucket/prefix (or gs://, az://): weights and updates there; absent: in the run's folder"),
    )
    fetch: Literal["mqtt", "https"] = field(
        default="mqtt",
        metadata=hint("'https': devices read large blobs from the bucket by signed addresses; needs blobs"),
    )

    def __post_init__(self) -> None:
        """Check values."""
        if self.blobs is not None and not _BUCKET.fullmatch(self.blobs):
            raise ConfigError(
                "store.blobs must be an address such as s3://bucket/prefix without a key or a user in it; "
                "leave it out for the run's folder"
            )
        if self.fetch == "https" and self.blobs is None:
            raise ConfigError("store.fetch = 'https' needs store.blobs, a bucket that devices can read from")
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
