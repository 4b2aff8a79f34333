"""paho's client without its copies: a large payload is received into one buffer and sent from where it lies.

paho joins a packet from pieces and cuts it apart again, four to five copies of each payload, and asks the system
for single bytes. Here small reads are buffered, a PUBLISH of QoS 0 is read straight into memory that is used again
once nobody looks at it, and a payload goes out as head and tail without joining them. Its thread sleeps until something
comes or a ping is due, where paho wakes up every second. Only hooks of paho between its state and the socket are used;
with a paho that lacks one of them everything goes the ordinary way.
"""

import contextlib
import ssl
import time
import uuid
from collections.abc import Callable
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import MessageType, MQTTErrorCode, MQTTProtocolVersion

from fedwright.protocol.codec import MAX_MESSAGE_BYTES
from fedwright.protocol.support.buffers import Buffers

AHEAD_BYTES = 4096
# Below this a fresh piece of memory costs nothing.
LARGE_BYTES = 16 * 1024
# Topic and properties come on top of the largest message; what is longer goes paho's way and grows as it arrives.
MAX_PACKET_BYTES = MAX_MESSAGE_BYTES + 128 * 1024
# Type and QoS in the first byte of a packet.
KIND_BITS = 0xF6

HOOKS = ("_sock_recv", "_sock_send", "_sock_close", "_packet_queue", "_handle_publish", "_pack_remaining_length")
STATE = {"command", "have_remaining", "packet"}
# When something went out and came in, by the names of several releases; without them paho's thread goes its own way.
SENT_S, HEARD_S = ("_last_msg_out",), ("_last_bytes_received", "_last_msg_in")
# A ping that is due is paho's to send, right after it has looked; it is not asked more often than this.
LEAST_SLEEP_S = 0.01

OnUnreliable = Callable[[str, memoryview], None]
"""Takes topic and payload of a message of QoS 0."""


def _has_hooks(client: paho.Client) -> bool:
    return all(hasattr(paho.Client, hook) for hook in HOOKS) and set(getattr(client, "_in_packet", ())) >= STATE


def _first_of(client: paho.Client, names: tuple[str, ...]) -> float | None:
    return next((value for name in names if (value := getattr(client, name, None)) is not None), None)


class _Incoming:
    """A packet on its way in; stands where paho collects one, and has what paho wants to add already."""

    def __init__(self, view: memoryview) -> None:
        self.view = view
        self._filled = 0

    def rest(self) -> memoryview:
        """What is still empty."""
        return self.view[self._filled :]

    def took(self, count: int) -> memoryview:
        """Note that so many bytes came; returns them."""
        self._filled += count
        return self.view[self._filled - count : self._filled]

    def __iadd__(self, _data: memoryview) -> "_Incoming":
        return self


class _Outgoing:
    """A packet of head and tail that is never joined; paho asks for the rest of it from a position on."""

    def __init__(self, head: bytes, tail: bytes | memoryview) -> None:
        self._head = memoryview(head)
        self._tail = memoryview(tail)

    def __len__(self) -> int:
        return len(self._head) + len(self._tail)

    def __getitem__(self, rest: slice) -> list[memoryview]:
        sent: int = rest.start
        if sent < len(self._head):
            return [self._head[sent:], self._tail]
        return [self._tail[sent - len(self._head) :]]


def new_client_id(name: str) -> str:
    """A broker throws out the older of two connections with one id, so each boot has its own."""
    return f"{name}-{uuid.uuid4().hex[:8]}"


class LeanClient(paho.Client):
    """A paho client; messages of QoS 0 go to `on_unreliable` instead of `on_message`."""

    def __init__(self, *args: Any, on_unreliable: OnUnreliable, **options: Any) -> None:
        self._on_unreliable = on_unreliable
        self._buffers = Buffers()
        self._ahead = b""
        super().__init__(*args, **options)
        self._lean = _has_hooks(self)

    def publish_parts(self, topic: str, head: bytes, tail: bytes | memoryview) -> None:
        """Publish head and tail as one payload at QoS 0; the tail must not change until it is sent."""
        if not self._lean:
            self.publish(topic, b"".join((head, tail)), qos=0)
            return
        if self._sock is None:
            return
        name = topic.encode()
        variable = len(name).to_bytes(2, "big") + name
        if self._protocol == MQTTProtocolVersion.MQTTv5:
            variable += b"\0"
        packet = bytearray([MessageType.PUBLISH])
        self._pack_remaining_length(packet, len(variable) + len(head) + len(tail))
        outgoing: Any = _Outgoing(bytes(packet) + variable + head, tail)
        # Its first byte says QoS 0; paho is told otherwise, else it makes up an acknowledgement for each.
        self._packet_queue(MessageType.PUBLISH, outgoing, 0, 1, None)

    def go_to(self, host: str, port: int, *, anew: bool = False) -> None:
        """Connect there the next time; anew: as another client, of whom no node remembers anything."""
        self._host, self._port = host, port
        if anew:
            self._client_id = new_client_id(self._client_id.decode().rpartition("-")[0]).encode()

    def release(self) -> None:
        """Close the sockets that woke its thread, which paho leaves to the collector; for a client that has stopped."""
        reset = getattr(self, "_reset_sockets", None)
        if reset is not None:
            reset()

    def loop_stop(self) -> MQTTErrorCode:
        """End the thread, which may be asleep for long."""
        self._thread_terminate = True
        wake = getattr(self, "_sockpairW", None)
        if wake is not None:
            with contextlib.suppress(OSError):
                wake.send(b"\0")
        return super().loop_stop()

    def _loop(self, timeout: float = 1.0) -> MQTTErrorCode:
        return super()._loop(self._sleep_s(timeout))

    def _sleep_s(self, otherwise_s: float) -> float:
        """Until a ping or its answer is due."""
        sent_s, heard_s = (_first_of(self, names) for names in (SENT_S, HEARD_S))
        if sent_s is None or heard_s is None or not self._keepalive or not self.is_connected():
            return otherwise_s
        asked_s = getattr(self, "_ping_t", 0.0) or heard_s
        return max(LEAST_SLEEP_S, min(sent_s, heard_s, asked_s) + self._keepalive - time.monotonic())

    def loop_read(self, max_packets: int = 1) -> MQTTErrorCode:
        """Read until nothing is buffered: select() knows only of what still waits in the system."""
        done = super().loop_read(max_packets)
        while self._ahead and not done:
            done = self.loop_write() or self.loop_misc() or super().loop_read(max_packets)
        return done

    def _sock_recv(self, bufsize: int) -> Any:
        if not self._lean:
            return super()._sock_recv(bufsize)
        incoming = self._incoming(bufsize)
        if incoming is None or self._ahead:
            self._ahead = self._ahead or super()._sock_recv(AHEAD_BYTES)
            data, self._ahead = self._ahead[:bufsize], self._ahead[bufsize:]
            if incoming is None:
                return data
            incoming.rest()[: len(data)] = data
            return incoming.took(len(data))
        sock: Any = self._sock
        if sock is None:
            raise ConnectionError("the connection was closed")
        try:
            return incoming.took(sock.recv_into(incoming.rest()))
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as err:
            raise BlockingIOError from err

    def _incoming(self, bufsize: int) -> _Incoming | None:
        """Where the body of a PUBLISH at QoS 0 goes to; None for all else."""
        packet: Any = self._in_packet
        collected = packet["packet"]
        if isinstance(collected, _Incoming):
            return collected
        if (
            not packet["have_remaining"]
            or collected
            or packet["command"] & KIND_BITS != MessageType.PUBLISH
            or bufsize > MAX_PACKET_BYTES
        ):
            return None
        large = bufsize >= LARGE_BYTES
        incoming = _Incoming(self._buffers.take(bufsize) if large else memoryview(bytearray(bufsize)))
        packet["packet"] = incoming
        return incoming

    def _sock_send(self, buf: Any) -> int:
        if not isinstance(buf, list):
            return super()._sock_send(buf)
        sock: Any = self._sock
        if sock is None or isinstance(sock, ssl.SSLSocket):
            return super()._sock_send(buf[0])
        return int(sock.sendmsg(buf))

    def _sock_close(self) -> None:
        self._ahead = b""
        super()._sock_close()

    def _handle_publish(self) -> MQTTErrorCode:
        incoming: Any = self._in_packet["packet"]
        # Older releases of paho stumble over a packet without a body.
        if not incoming:
            return MQTTErrorCode.MQTT_ERR_PROTOCOL
        if not isinstance(incoming, _Incoming):
            return super()._handle_publish()
        try:
            topic, payload = split_publish(incoming.view, five=self._protocol == MQTTProtocolVersion.MQTTv5)
        except ValueError:
            return MQTTErrorCode.MQTT_ERR_PROTOCOL
        self._on_unreliable(topic, payload)
        return MQTTErrorCode.MQTT_ERR_SUCCESS


def split_publish(packet: memoryview, *, five: bool) -> tuple[str, memoryview]:
    """Topic and payload of a PUBLISH at QoS 0 after its fixed header; ValueError when its lengths do not fit."""
    end = 2 + int.from_bytes(packet[:2], "big")
    topic = str(packet[2:end], "utf-8")
    if five:
        properties_bytes = 0
        for position, byte in enumerate(packet[end : end + 4]):
            properties_bytes |= (byte & 0x7F) << (7 * position)
            if byte < 0x80:
                break
        else:
            raise ValueError("the length of the properties does not end")
        end += position + 1 + properties_bytes
    if end > len(packet):
        raise ValueError("topic or properties are longer than the packet")
    return topic, packet[end:]
