"""A broker that asks for passwords: its users, what each may do, and the files that tell mosquitto so."""

import base64
import hashlib
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fedwright.protocol import topics
from fedwright.protocol.address import DEVICE_USER, EDGE_USER
from fedwright.protocol.errors import ConfigError
from fedwright.protocol.link.security import SERVER_NAME
from fedwright.protocol.support.files import write_private

USERS = (SERVER_NAME, DEVICE_USER, EDGE_USER)

# Letters and digits that nobody takes for another; twenty of them are 99 bits.
ALPHABET = "abcdefghjkmnpqrstuvwxyz23456789"
LENGTH = 20
# The passwords are random, so that a slow hash would protect nothing.
ITERATIONS = 101
SALT_BYTES = 12


@dataclass(frozen=True)
class BrokerPasswords:
    """The password of each user; all devices share one, so only certificates keep them apart."""

    users: Mapping[str, str] = field(repr=False)

    def listener(self, port: int, folder: Path) -> list[str]:
        """Lines of a mosquitto configuration, for every address of this machine; writes the files it names."""
        hashes, access = folder / "users", folder / "access.list"
        write_private(hashes, "".join(f"{user}:{mosquitto_hash(word)}\n" for user, word in self.users.items()))
        write_private(access, access_list())
        return [
            f"listener {port}",
            "allow_anonymous false",
            f"password_file {hashes.resolve()}",
            f"acl_file {access.resolve()}",
        ]


def rights() -> dict[str, dict[str, list[str]]]:
    """What each user may write and read: devices speak upwards only, an edge is a device and rules its own fleet."""
    everything = ["fedwright/#"]
    probe = topics.probe("+")
    devices = {
        "write": [topics.up("+", "+"), probe],
        "read": [topics.down("+", "+"), topics.shared("+"), probe],
    }
    both = {"write": everything, "read": everything}
    return {SERVER_NAME: both, EDGE_USER: both, DEVICE_USER: devices}


def access_list() -> str:
    """The rights as mosquitto reads them."""
    lines = []
    for user, allowed in rights().items():
        lines.append(f"user {user}")
        lines += [f"topic {verb} {topic}" for verb, patterns in allowed.items() for topic in patterns]
    return "\n".join(lines) + "\n"


def mosquitto_hash(password: str) -> str:
    """A password as `mosquitto_passwd` would write it: PBKDF2 with SHA-512."""
    salt = os.urandom(SALT_BYTES)
    digest = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, ITERATIONS)
    salt_text, digest_text = (base64.b64encode(part).decode() for part in (salt, digest))
    return f"$7${ITERATIONS}${salt_text}${digest_text}"


def kept_passwords(folder: Path) -> BrokerPasswords:
    """The passwords in a folder, one file for each user; made once, so that devices find their way back."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for user in USERS:
            file = password_file(folder, user)
            if not file.exists():
                write_private(file, "".join(secrets.choice(ALPHABET) for _ in range(LENGTH)) + "\n")
        return BrokerPasswords({user: password_file(folder, user).read_text().strip() for user in USERS})
    except OSError as err:
        raise ConfigError(
            f"the broker's passwords cannot be kept in {folder} ({err.strerror}); make it writable or name a broker "
            f"that is running with --broker"
        ) from err


def password_file(folder: Path, user: str) -> Path:
    """Where the password of a user is kept."""
    return folder / f"{user}.password"
