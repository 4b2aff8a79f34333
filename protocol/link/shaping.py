"""A stretch of bad network between a link and its broker: a TCP proxy with a rate, a delay and a pair of scissors."""

import asyncio
import random
import socket
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from fedwright.protocol.errors import ConfigError, LinkError

READ_BYTES = 16 * 1024
# Bytes on their way in one direction; a router holds about as much before it slows its sender down.
QUEUE_READS = 32
START_TIMEOUT_S = 10.0
PACKET_BYTES = 1460
# RFC 6298 asks for a second; Linux waits no less than this.
LEAST_RESEND_S = 0.2
MOST_RESENDS = 6


@dataclass(frozen=True)
class Shape:
    """What each direction of a connection lets through.

    loss_ratio: share of packets lost on the way. TCP sends them again, so what a connection sees of it is waiting.
    """

    bytes_per_s: float | None = None
    delay_s: float = 0.0
    loss_ratio: float = 0.0

    def __post_init__(self) -> None:
        if self.bytes_per_s is not None and self.bytes_per_s <= 0:
            raise ConfigError(f"bytes_per_s is {self.bytes_per_s} but must be above 0; leave it out for no limit")
        if self.delay_s < 0:
            raise ConfigError(f"delay_s is {self.delay_s} but must be 0 or more")
        if not 0 <= self.loss_ratio < 1:
            raise ConfigError(f"loss_ratio is {self.loss_ratio} but must be 0 or more and below 1")

    def resend_s(self, size: int, draw: Callable[[], float]) -> float:
        """How much later so many bytes come because some of their packets were lost and sent again."""
        if not self.loss_ratio:
            return 0.0
        lost = 0
        while draw() > (1 - self.loss_ratio) ** -(-size // PACKET_BYTES) and lost < MOST_RESENDS:
            lost += 1
        # The sender notices after a round trip at the earliest, and waits twice as long each time.
        return sum(max(LEAST_RESEND_S, 2 * self.delay_s) * 2.0**again for again in range(lost))


class Proxy:
    """Listens on the loopback address and passes every connection on to a broker, in the given shape."""

    def __init__(self, host: str, port: int, shape: Shape | None = None, *, seed: int = 0) -> None:
        self._target = (host, port)
        self._shape = shape or Shape()
        self._draw = random.Random(seed).random
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="shaping", daemon=True)
        self._connections: set[asyncio.Task[None]] = set()
        self._listener: socket.socket | None = None
        self.port = 0

    @property
    def url(self) -> str:
        """What to give to `connect` instead of the broker's address."""
        return f"mqtt://127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Break every connection and refuse new ones."""
        self._do(self._cut)

    def mend(self) -> None:
        """Let connections through again, on the same port."""
        self._do(self._listen)

    def reshape(self, shape: Shape) -> None:
        """Change the shape, also of connections that stand."""
        self._shape = shape

    def start(self) -> "Proxy":
        """Begin to listen."""
        self._thread.start()
        self._do(self._listen)
        return self

    def stop(self) -> None:
        """Break what stands and stop."""
        self._do(self._cut)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> "Proxy":
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _do(self, action: Callable[[], Coroutine[Any, Any, None]]) -> None:
        asyncio.run_coroutine_threadsafe(action(), self._loop).result(START_TIMEOUT_S)

    async def _listen(self) -> None:
        try:
            self._listener = socket.create_server(("127.0.0.1", self.port))
        except OSError as err:
            raise LinkError(f"port {self.port} cannot be listened on ({err.strerror}); choose another") from err
        self.port = self._listener.getsockname()[1]
        self._listener.setblocking(False)
        # Not asyncio's server: closed between accepting and handing over, it leaves the connection open.
        self._loop.add_reader(self._listener, self._accept, self._listener)

    async def _cut(self) -> None:
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        await _cancel(self._connections)

    def _accept(self, listener: socket.socket) -> None:
        try:
            near, _ = listener.accept()
        except OSError:
            # Whoever knocked has gone again.
            return
        near.setblocking(False)
        connection = self._loop.create_task(self._carry(near))
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)
        # Here, not in the task: one that is cancelled before its first step never gets to its `finally`.
        connection.add_done_callback(lambda _: near.close())

    async def _carry(self, near: socket.socket) -> None:
        with suppress(OSError):
            far_reader, far_writer = await asyncio.open_connection(*self._target)
            with _aborted_at_end(far_writer):
                reader, writer = await asyncio.open_connection(sock=near)
                with _aborted_at_end(writer):
                    pipes = [
                        asyncio.create_task(self._pipe(reader, far_writer)),
                        asyncio.create_task(self._pipe(far_reader, writer)),
                    ]
                    try:
                        await asyncio.wait(pipes, return_when=asyncio.FIRST_COMPLETED)
                    finally:
                        await _cancel(pipes)

    async def _pipe(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass bytes on, each not before the line was free for it and the delay is over."""
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(QUEUE_READS)
        sending = asyncio.create_task(self._deliver(queue, writer))
        free_s = 0.0
        try:
            with suppress(OSError):
                while data := await reader.read(READ_BYTES):
                    rate = self._shape.bytes_per_s
                    free_s = max(free_s, self._loop.time()) + self._shape.resend_s(len(data), self._draw)
                    free_s = max(free_s, self._loop.time()) + (len(data) / rate if rate else 0.0)
                    await queue.put((free_s + self._shape.delay_s, data))
            await queue.join()
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    async def _deliver(self, queue: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
        while True:
            due_s, data = await queue.get()
            await asyncio.sleep(max(0.0, due_s - self._loop.time()))
            with suppress(OSError):
                writer.write(data)
                await writer.drain()
            queue.task_done()


async def _cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait until they are over."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@contextmanager
def _aborted_at_end(writer: asyncio.StreamWriter) -> Iterator[None]:
    try:
        yield
    finally:
        writer.transport.abort()
