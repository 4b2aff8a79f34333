"""The other processes of the transport benchmark; each says `ready` on its standard output when it stands.

Run as `python -m fedwright.benchmarks.processes.transport_peer MODE ARGUMENT…`; all end when their
standard input closes.
"""

import hashlib
import os
import socket
import sys
import tempfile
import threading
from pathlib import Path

from fedwright.protocol import codec, topics
from fedwright.protocol.blobs import BlobStore
from fedwright.protocol.link import Link, connect
from fedwright.protocol.messages import Board, Challenge, DataSummary, Get, Report, Stats, Update
from fedwright.protocol.uploads import Uploads

FLEET = "bench"
BUFFER_BYTES = 256 * 1024


def made_blob(name: str, size_bytes: int) -> bytes:
    """Bytes that do not compress and differ from peer to peer."""
    return hashlib.shake_256(name.encode()).digest(size_bytes)


def report() -> Report:
    """A report of ordinary size."""
    return Report(
        agent="bench",
        board=Board("bench", "none", cores=4, ram_bytes=2**32, runtime="none", threads=4),
        free_bytes=2**31,
        data=DataSummary(samples=1000, holdout=100, input_shape=[3, 32, 32], classes=10, class_counts=[100] * 10),
    )


def relay(target_port: int) -> None:
    """One hop of the raw relay: copy one connection to another."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        _say(f"ready {server.getsockname()[1]}")
        incoming, _ = server.accept()
        with incoming, socket.create_connection(("127.0.0.1", target_port)) as outgoing:
            buffer = memoryview(bytearray(BUFFER_BYTES))
            while count := incoming.recv_into(buffer):
                outgoing.sendall(buffer[:count])


def send_raw(port: int, size_bytes: int) -> None:
    """Send that many bytes when told to."""
    data = made_blob("raw", size_bytes)
    with socket.create_connection(("127.0.0.1", port)) as sock:
        _say("ready")
        sys.stdin.readline()
        sock.sendall(data)


def devices(url: str, first: int, count: int, blob_bytes: int) -> None:
    """So many idle devices in one process: each reports when challenged and answers for one blob."""
    with tempfile.TemporaryDirectory() as folder:
        uploads = Uploads(BlobStore(Path(folder), sync=False))
        links = []
        for number in range(first, first + count):
            name = f"device-{number}"
            link = connect(url, client_id=name)
            link.subscribe(topics.down(FLEET, name))
            link.subscribe(topics.shared(FLEET))
            ref = uploads.offer(made_blob(name, blob_bytes), inline=False) if blob_bytes else None
            update = Update(task="t", round=0, stats=Stats(1, 1, 0.0, 0.0, 0), tensors=ref)
            threading.Thread(target=_be_device, args=(link, name, update, uploads), daemon=True).start()
            links.append(link)
        _say("ready")
        sys.stdin.read()
        for link in links:
            link.close()


def _be_device(link: Link, name: str, update: Update, uploads: Uploads) -> None:
    up = topics.up(FLEET, name)
    boot = codec.new_id()
    while True:
        received = link.receive(3600.0)
        if received is None:
            continue
        body = codec.decode(received.payload).body
        if isinstance(body, Challenge):
            answer = report() if update.tensors is None else update
            link.send(up, codec.encode(answer, sender=name, boot=boot))
        elif isinstance(body, Get):
            for chunk in uploads.answer(body):
                head, tail = codec.encode_parts(chunk, sender=name, boot=boot)
                link.send(up, head, tail=tail, reliable=False)


def _say(word: str) -> None:
    os.write(sys.stdout.fileno(), f"{word}\n".encode())


def main(arguments: list[str]) -> None:
    """Be the peer that the arguments name."""
    mode, *rest = arguments
    if mode == "relay":
        relay(int(rest[0]))
    elif mode == "send-raw":
        send_raw(int(rest[0]), int(rest[1]))
    else:
        devices(rest[0], int(rest[1]), int(rest[2]), int(rest[3]))


if __name__ == "__main__":
    main(sys.argv[1:])
