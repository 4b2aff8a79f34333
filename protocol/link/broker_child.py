"""The child process of a broker: ties its life to its parent's, then becomes mosquitto or runs amqtt.

Run as `python -m fedwright.protocol.link.broker_child PARENT exec PROGRAM ARGUMENT…` or `… PARENT amqtt FILE`,
where PARENT is the process id of the parent and FILE holds the settings as JSON.
"""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from fedwright.protocol.support.files import write_private
from fedwright.protocol.support.parent import die_with_parent


async def serve_amqtt(settings: dict[str, Any], folder: Path) -> None:
    """Run amqtt until SIGTERM: for everybody on the loopback address, or with passwords on every address."""
    from amqtt.broker import Broker  # type: ignore[import-untyped]

    users = settings["users"]
    host = "127.0.0.1" if users is None else "0.0.0.0"
    broker = Broker(
        {
            "listeners": {"default": {"type": "tcp", "bind": f"{host}:{settings['port']}"}},
            "plugins": _open_to_all() if users is None else _with_passwords(users, settings["rights"], folder),
        }
    )
    stop = asyncio.Event()
    for sign in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(sign, stop.set)
    await broker.start()
    await stop.wait()
    await broker.shutdown()


def _open_to_all() -> dict[str, Any]:
    return {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}}


def _with_passwords(users: dict[str, str], rights: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Plugins that know the users; the passwords are random, so that a cheap hash does."""
    from pwdlib.hashers.argon2 import Argon2Hasher

    hasher = Argon2Hasher(time_cost=1, memory_cost=8, parallelism=1)
    hashes = folder / "users"
    write_private(hashes, "".join(f"{user}:{hasher.hash(word)}\n" for user, word in users.items()))
    return {
        "amqtt.plugins.authentication.FileAuthPlugin": {"password_file": str(hashes)},
        "amqtt.plugins.topic_checking.TopicAccessControlListPlugin": {
            "publish_acl": {user: allowed["write"] for user, allowed in rights.items()},
            "acl": {user: allowed["read"] for user, allowed in rights.items()},
        },
    }


def main(arguments: list[str]) -> None:
    """Become the broker that the arguments name."""
    parent, mode, *rest = arguments
    die_with_parent(int(parent))
    if mode == "exec":
        os.execv(rest[0], rest)
    file = Path(rest[0])
    asyncio.run(serve_amqtt(json.loads(file.read_bytes()), file.parent))


if __name__ == "__main__":
    main(sys.argv[1:])
