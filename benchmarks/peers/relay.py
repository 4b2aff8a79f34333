"""A TCP relay in a process of its own that counts what crosses it: both systems' devices speak through one."""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

BUFFER_BYTES = 256 * 1024


class CountingRelay:
    """A relay that runs; `url_port` is where devices connect."""

    def __init__(self, process: "subprocess.Popen[str]", port: int) -> None:
        self._process = process
        self.port = port

    def counts(self) -> tuple[int, int]:
        """Bytes so far from the devices, and to them."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        up, down = self._process.stdout.readline().split()
        return int(up), int(down)


@contextmanager
def relay_to(port: int) -> Iterator[CountingRelay]:
    """A relay to a port of this machine."""
    command = [sys.executable, "-m", "fedwright.benchmarks.peers.relay", str(port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield CountingRelay(process, int(process.stdout.readline()))
        finally:
            process.kill()


class _Counting:
    def __init__(self, port: int) -> None:
        self.port = port
        self.up = 0
        self.down = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(self._pump(reader, far_writer, up=True), self._pump(far_reader, writer, up=False))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, up: bool) -> None:
        # A side that dies ends its own connection only.
        with contextlib.suppress(OSError):
            while data := await reader.read(BUFFER_BYTES):
                self.up += len(data) if up else 0
                self.down += 0 if up else len(data)
                writer.write(data)
                await writer.drain()
        with contextlib.suppress(OSError):
            writer.close()


async def _main(port: int) -> None:
    counting = _Counting(port)
    server = await asyncio.start_server(counting.serve, "127.0.0.1", 0)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    async with server:
        while await asyncio.to_thread(sys.stdin.readline):
            sys.stdout.write(f"{counting.up} {counting.down}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1])))
