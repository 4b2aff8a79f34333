"""The child process of a broker: ties its life to its parent's, then becomes mosquitto or runs amqtt.

Run as `python -m fedwright.protocol.link.broker_child PARENT exec PROGRAM ARGUMENT…` or `… PARENT amqtt PORT`,
where PARENT is the process id of the parent.
"""

import asyncio
import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Ask Linux to end this process when the parent ends; elsewhere the parent's own clean-up must do."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(1)


async def serve_amqtt(port: int) -> None:
    """Run amqtt on the loopback address until SIGTERM."""
    from amqtt.broker import Broker  # type: ignore[import-untyped]

    broker = Broker(
        {
            "listeners": {"default": {"type": "tcp", "bind": f"127.0.0.1:{port}"}},
            "plugins": {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}},
        }
    )
    stop = asyncio.Event()
    for sign in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(sign, stop.set)
    await broker.start()
    await stop.wait()
    await broker.shutdown()


def main(arguments: list[str]) -> None:
    """Become the broker that the arguments name."""
    parent, mode, *rest = arguments
    die_with_parent(int(parent))
    if mode == "exec":
        os.execv(rest[0], rest)
    asyncio.run(serve_amqtt(int(rest[0])))


if __name__ == "__main__":
    main(sys.argv[1:])
