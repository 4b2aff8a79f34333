"""A sender and a receiver of one blob over a link, as small as they can be."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fedwright.protocol import codec
from fedwright.protocol.blobs import Download
from fedwright.protocol.link import Link
from fedwright.protocol.messages import Chunk, Get, Message
from fedwright.protocol.uploads import Uploads

GETS = "blob/get"
CHUNKS = "blob/chunk"


def pack(message: Message) -> bytes:
    """A message as a test device sends it."""
    return codec.encode(message, sender="test", boot="boot")


@contextmanager
def serving(link: Link, uploads: Uploads) -> Iterator[None]:
    """Answer every Get in a thread of its own."""
    link.subscribe(GETS)
    stop = threading.Event()

    def serve() -> None:
        while not stop.is_set():
            received = link.receive(1.0)
            if received is not None:
                body = codec.decode(received.payload).body
                assert isinstance(body, Get)
                for answer in uploads.answer(body):
                    head, tail = codec.encode_parts(answer, sender="test", boot="boot")
                    link.send(CHUNKS, head, tail=tail, reliable=False)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        link.wake()
        thread.join()


def pull(
    link: Link,
    download: Download,
    *,
    on_chunk: Callable[[int], None] = lambda count: None,
    stop_after: int | None = None,
    timeout_s: float = 60.0,
) -> list[int]:
    """Fetch a blob until it is done (or `stop_after` chunks came); returns the chunks that were accepted, in order."""
    accepted: list[int] = []
    connects = link.connects
    deadline_s = time.monotonic() + timeout_s
    while not download.done and len(accepted) != stop_after:
        assert time.monotonic() < deadline_s, f"{download.missing} chunks still missing"
        if link.connects != connects:
            connects = link.connects
            download.lost_link()
        wanted = download.wanted(time.monotonic())
        if wanted:
            link.send(GETS, pack(Get(download.ref.sha256, wanted)))
        received = link.receive(0.1)
        if received is not None:
            body = codec.decode(received.payload).body
            assert isinstance(body, Chunk)
            if download.accept(body.index, body.data):
                accepted.append(body.index)
                on_chunk(len(accepted))
    return accepted
