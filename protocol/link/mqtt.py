"""The mqtt link: paho behind a queue. Its callbacks only note what happened; no decision is taken in them."""

import contextlib
import logging
import random
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from fedwright.protocol.address import PASSWORD_VARIABLE, Address, Login, parse_url, with_login
from fedwright.protocol.errors import ConfigError, LinkError
from fedwright.protocol.link.base import Buffer, Received, Watch, Will
from fedwright.protocol.link.branch import Branch
from fedwright.protocol.link.inbox import InboxLink
from fedwright.protocol.link.paho_client import LeanClient, new_client_id
from fedwright.protocol.link.security import TlsFiles

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 10.0
# How long a broker queues for a link that broke (MQTT 5 only); the client id is new at each boot.
SESSION_EXPIRY_S = 600
# Who loses power is noticed after one and a half of these, unless told otherwise.
KEEPALIVE_S = 20
# What was sent and nobody acknowledged for so long went into a connection that is gone, whatever the pings say.
UNHEARD_S = 40
# Each link draws its own delays, so that a large fleet does not come back all at once.
FIRST_DELAY_S = (0.1, 0.5)
LAST_DELAY_S = (15.0, 30.0)
# A connection that breaks sooner was thrown out; after so many the next ones are tried ever more seldom, until one
# has lasted.
SHORT_S, LASTING_S = 2.0, 60.0
SHORT_ONES = 3
CLOSE_FLUSH_S = 5.0
UNSPECIFIED = "Unspecified error"  # of paho: the connection ended without a word
# No clock that was ever set shows a time before this project began: the first second of 2024.
NO_CLOCK_BEFORE_S = 1_704_067_200
# OpenSSL's X509_V_FLAG_NO_CHECK_TIME, for which Python has no name.
X509_NO_CHECK_TIME = 0x200000
# CONNECT: protocol MQTT level 5, clean start, keep-alive 5 s, no properties, empty client id.
V5_CONNECT = bytes.fromhex("100d00044d5154540502000500") + b"\0\0"
V5_DISCONNECT = b"\xe0\0"
# CONNACK codes for "unsupported protocol version" of MQTT 3.1.1 and 5.
V5_UNKNOWN = (0x01, 0x84)
CHECK_LOGIN = f"check the password ({PASSWORD_VARIABLE} or --password-file), or the certificate and its access list"
CHECK_COPIES = "check that no other process or board uses the same certificate: each may connect once"


class _Refused(Exception):
    """The broker answered the connection with a reason code."""


class MqttLink(InboxLink):
    """A link to an MQTT broker; made by `open_mqtt`, which sees that the first connection stands."""

    def __init__(
        self,
        address: Address,
        *,
        client_id: str,
        will: Will | tuple[str, bytes] | None,
        tls: TlsFiles,
        version: int,
        watch: Watch = lambda here: None,
    ) -> None:
        super().__init__()
        self.version = version
        self._address = address
        self._node = 0
        self._watch = watch
        self._keepalive_s = will.keepalive_s if isinstance(will, Will) else KEEPALIVE_S
        self._closing = False
        self._lost_s: float | None = None
        self._up_s = 0.0
        self._short_ones = 0
        self._delays_s = random.uniform(*FIRST_DELAY_S), random.uniform(*LAST_DELAY_S)
        self._lock = threading.Lock()
        self._patterns: list[str] = []
        self._unacknowledged: set[int] = set()
        # paho calls back while it holds its own locks, so callbacks take none of ours: they append and set.
        self._acknowledged: deque[int] = deque()
        self._granted: deque[int] = deque()
        self._answered = threading.Event()
        self._resubscribing: set[int] = set()
        self._refused: ReasonCode | None = None
        self._failed = False
        self._connected = False
        self._warned_full = False
        self._client = self._make_client(address, client_id, will, tls)

    def branch(self, prefix: str) -> Branch:
        """A second reader on this connection; what comes on topics that begin so goes to it alone."""
        return Branch(self, self._branch_inbox(prefix))

    def _make_client(
        self, address: Address, client_id: str, will: Will | tuple[str, bytes] | None, tls: TlsFiles
    ) -> LeanClient:
        five = self.version == MQTTProtocolVersion.MQTTv5
        client = LeanClient(
            CallbackAPIVersion.VERSION2,
            on_unreliable=lambda topic, payload: self._put(Received(topic, payload), reliable=False),
            client_id=new_client_id(client_id),
            clean_session=None if five else True,
            protocol=MQTTProtocolVersion(self.version),
        )
        client.connect_timeout = CONNECT_TIMEOUT_S
        client.max_queued_messages_set(0)
        client.reconnect_delay_set(*self._delays_s)  # type: ignore[arg-type]
        if address.password is not None:
            client.username_pw_set(address.user, address.password)
        if will is not None:
            client.will_set(will[0], will[1], qos=1)
        if address.secure:
            client.tls_set_context(_tls_context(tls))
        client.on_socket_open = _set_up_socket
        client.on_connect = self._on_connect
        client.on_connect_fail = lambda client, _data: self._next_node(client)
        client.on_disconnect = self._on_disconnect
        client.on_subscribe = self._on_subscribe
        client.on_publish = self._on_publish
        client.on_message = self._on_message
        return client

    def open(self, node: int = 0) -> None:
        """Connect for the first time; OSError when nobody listens, _Refused when the broker says no."""
        self._node = node
        host, port = self._address.nodes[node]
        properties = None
        if self.version == MQTTProtocolVersion.MQTTv5:
            properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
            properties.SessionExpiryInterval = SESSION_EXPIRY_S
        self._client.connect(host, port, keepalive=self._keepalive_s, properties=properties)
        self._client.loop_start()
        self._wait_for(lambda: self.connects > 0 or self._failed, CONNECT_TIMEOUT_S)
        if self.connects:
            return
        self._stop()
        if self._refused is not None:
            raise _Refused(str(self._refused))
        raise TimeoutError("it closes the connection" if self._failed else "it does not answer")

    @property
    def connected(self) -> bool:
        """Whether the broker is reachable now."""
        return self._connected

    def subscribe(self, pattern: str) -> None:
        """Receive what is published on topics that match; waits for the broker's word when it is reachable."""
        with self._lock:
            if pattern in self._patterns:
                return
            self._patterns.append(pattern)
            _, mid = self._client.subscribe(pattern, qos=1)
        if mid is not None:
            self._wait_for(lambda: mid in self._granted or not self._connected, CONNECT_TIMEOUT_S)

    def send(self, topic: str, payload: bytes, *, tail: Buffer = b"", reliable: bool = True) -> None:
        """Publish: reliable at QoS 1 (kept while the link is down), else at QoS 0 (dropped while it is down)."""
        if not reliable and not self._connected:
            return
        with self._lock:
            if reliable:
                info = self._client.publish(topic, b"".join((payload, tail)), qos=1)
                if info.rc == MQTTErrorCode.MQTT_ERR_QUEUE_SIZE:
                    raise LinkError("65535 messages wait for the broker; check that it is alive and keeps up")
                self._unacknowledged.add(info.mid)
            else:
                self._client.publish_parts(topic, payload, tail)
            self.sent_bytes += len(payload) + len(tail)
            self._settle()

    def close(self) -> None:
        """Wait for acknowledgements while the broker is reachable, then disconnect without last will."""
        self._wait_for(lambda: not self._connected or self._all_acknowledged(), CLOSE_FLUSH_S)
        self._stop()

    def _stop(self) -> None:
        self._closing = True
        properties = None
        if self.version == MQTTProtocolVersion.MQTTv5:
            # Nobody comes back under this client id: the broker need not queue for it.
            properties = Properties(PacketTypes.DISCONNECT)  # type: ignore[no-untyped-call]
            properties.SessionExpiryInterval = 0
        self._client.disconnect(properties=properties)
        self._client.loop_stop()
        self._client.release()
        self._connected = False

    def _all_acknowledged(self) -> bool:
        with self._lock:
            self._settle()
            return not self._unacknowledged

    def _settle(self) -> None:
        while self._acknowledged:
            self._unacknowledged.discard(self._acknowledged.popleft())

    def _wait_for(self, holds: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until `holds()`; it is asked again after each callback."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            self._answered.clear()
            if holds():
                return True
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return False
            self._answered.wait(left_s)

    def _came_up(self) -> None:
        self.connects += 1
        if self._lost_s is not None:
            log.info("the broker at %s is back after %.0f s", self._address, time.monotonic() - self._lost_s)
            self._lost_s = self._refused = None
            self._watch(True)
        if self.connects > 1:
            self._wake_all()
        self._answered.set()

    def _on_connect(self, client: paho.Client, _data: Any, _flags: Any, reason: ReasonCode, _props: Any) -> None:
        if reason.is_failure:
            if self._lost_s is not None and self._refused is None:
                log.warning("the broker at %s is back but turns us away (%s); %s", self._address, reason, CHECK_LOGIN)
            self._refused = reason
            self._failed = True
            self._answered.set()
            return
        self._connected = True
        self._up_s = time.monotonic()
        self._resubscribing = set()
        for pattern in list(self._patterns):
            _, mid = client.subscribe(pattern, qos=1)
            if mid is not None:
                self._resubscribing.add(mid)
        if not self._resubscribing:
            self._came_up()

    def _on_disconnect(self, client: paho.Client, _data: Any, _flags: Any, reason: ReasonCode, _props: Any) -> None:
        if self._connected:
            self._slow_down(client, time.monotonic() - self._up_s)
        self._connected = False
        self._failed = True
        self._next_node(client)
        if self.connects and self._lost_s is None and not self._closing:
            self._lost_s = time.monotonic()
            why = "" if str(reason) == UNSPECIFIED else f" ({reason})"
            log.warning("the broker at %s is gone%s; trying until it is back", self._address, why)
            self._watch(False)
        self._answered.set()

    def _next_node(self, client: paho.Client) -> None:
        """Try the next node, if there are several; RabbitMQ shuts out a name whose queue's node is gone."""
        self._node = (self._node + 1) % len(self._address.nodes)
        if self.connects and isinstance(client, LeanClient):
            several = len(self._address.nodes) > 1
            client.go_to(*self._address.nodes[self._node], anew=several and bool(self._resubscribing))

    def _slow_down(self, client: paho.Client, lasted_s: float) -> None:
        """Two that have one certificate throw each other out; let that not keep the broker busy."""
        if lasted_s >= LASTING_S:
            self._short_ones = 0
        elif lasted_s < SHORT_S:
            self._short_ones += 1
        if self._short_ones == SHORT_ONES:
            log.warning("the broker at %s ends connections as soon as they stand; %s", self._address, CHECK_COPIES)
        first_s, last_s = self._delays_s
        grown_s = min(last_s, first_s * 2.0 ** max(0, self._short_ones - SHORT_ONES + 1))
        client.reconnect_delay_set(grown_s, last_s)  # type: ignore[arg-type]

    def _on_subscribe(self, _client: paho.Client, _data: Any, mid: int, _reasons: Any, _props: Any) -> None:
        if mid in self._resubscribing:
            self._resubscribing.discard(mid)
            if not self._resubscribing:
                self._came_up()
        self._granted.append(mid)
        self._answered.set()

    def _on_publish(self, _client: paho.Client, _data: Any, mid: int, _reason: Any, _props: Any) -> None:
        self._acknowledged.append(mid)
        self._answered.set()

    def _on_message(self, _client: paho.Client, _data: Any, message: paho.MQTTMessage) -> None:
        self._put(Received(message.topic, bytes(message.payload)), reliable=message.qos > 0)

    def _put(self, received: Received, *, reliable: bool) -> None:
        self.received_bytes += len(received.payload)
        if not self._sort_in(received, reliable=reliable):
            if not self._warned_full:
                log.warning("messages arrive faster than they are read; dropped one on %s", received.topic)
            self._warned_full = True


def open_mqtt(
    url: str,
    *,
    client_id: str,
    will: Will | tuple[str, bytes] | None,
    tls: TlsFiles,
    login: Login | None = None,
    watch: Watch = lambda here: None,
) -> MqttLink:
    """Connect with MQTT 5, or with 3.1.1 when that is all the broker speaks; LinkError when the broker is not there."""
    address = with_login(parse_url(url), login)
    for node in range(len(address.nodes)):
        try:
            version = MQTTProtocolVersion.MQTTv5 if _speaks_v5(address, node, tls) else MQTTProtocolVersion.MQTTv311
            link = MqttLink(address, client_id=client_id, will=will, tls=tls, version=version, watch=watch)
            link.open(node)
            return link
        except (_Refused, OSError) as err:
            failed = err
    raise _explained(address, failed) from failed


def _explained(address: Address, err: Exception) -> LinkError:
    """Why no node of the broker could be reached."""
    if isinstance(err, _Refused):
        return LinkError(f"the broker at {address} turned us away ({err}); {CHECK_LOGIN}")
    if isinstance(err, ssl.SSLError):
        return LinkError(
            f"TLS with the broker at {address} failed ({_tls_why(err)}); both sides need certificates of one"
            " `fedwright server enroll`: check the device's --bundle, fleet.trust of the server, edge.bundle of an edge"
        )
    why = _why(err) if isinstance(err, OSError) else str(err)
    return LinkError(f"no broker at {address} ({why}); start one or check --broker")


def _speaks_v5(address: Address, node: int, tls: TlsFiles) -> bool:
    """Ask with the smallest MQTT 5 CONNECT: a full one makes an older broker wait for bytes that never come."""
    with contextlib.ExitStack() as stack:
        sock = stack.enter_context(socket.create_connection(address.nodes[node], CONNECT_TIMEOUT_S))
        if address.secure:
            name = address.nodes[node][0]
            sock = stack.enter_context(_tls_context(tls).wrap_socket(sock, server_hostname=name))
        sock.sendall(V5_CONNECT)
        answer = b""
        while len(answer) < 4:
            part = sock.recv(4 - len(answer))
            if not part:
                return False
            answer += part
        if answer[3] in V5_UNKNOWN:
            return False
        # A broker that asks for a password has hung up already.
        if answer[3] == 0:
            sock.sendall(V5_DISCONNECT)
    return True


def _why(err: OSError) -> str:
    if isinstance(err, ConnectionRefusedError):
        return "connection refused"
    if isinstance(err, socket.gaierror):
        return "unknown host"
    return str(err.strerror or err)


def _tls_why(err: ssl.SSLError) -> str:
    if isinstance(err, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {err.verify_message}"
    if isinstance(err, ssl.SSLEOFError):
        return "it hung up, as brokers do on a certificate that is unknown or revoked"
    reason = err.reason or str(err)
    if "CERTIFICATE_REVOKED" in reason:
        return "it says that our certificate was revoked; enroll this device anew"
    if "CERTIFICATE_EXPIRED" in reason:
        return "it says that our certificate has ended; on the server: fedwright server renew"
    return reason.replace("_", " ").lower()


def _set_up_socket(_client: paho.Client, _data: Any, sock: Any) -> None:
    # Without it every QoS 1 round trip takes 44 ms.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * UNHEARD_S)


def _tls_context(tls: TlsFiles) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=str(tls.ca) if tls.ca else None)
        if tls.cert is not None:
            context.load_cert_chain(tls.cert, tls.key)
        # A board without a clock starts in 1970, before any certificate. That of its own authority is believed; whether
        # its own is still good is for the broker to say, which has a clock.
        if tls.ca is not None and time.time() < NO_CLOCK_BEFORE_S:
            context.verify_flags = ssl.VerifyFlags(context.verify_flags | X509_NO_CHECK_TIME)
    except (OSError, ssl.SSLError) as err:
        raise ConfigError(f"TLS files {tls.ca}, {tls.cert}, {tls.key} cannot be used: {err}") from err
    return context
