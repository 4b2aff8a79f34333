"""Hands out certificates over HTTPS to devices that show a token; knows two requests and nothing else."""

import logging
import socket
import ssl
import threading
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec

from fedwright.protocol.enrolment import CA_PATH, ENROLL_PATH, MAX_BYTES, EnrolmentRequest, read_record
from fedwright.protocol.errors import FedwrightError, LinkError
from fedwright.server_runtime.fleet.authority import Authority
from fedwright.server_runtime.fleet.tokens import Tokens

log = logging.getLogger(__name__)

# A device asks once and at once; whoever is slower is somebody else.
TIMEOUT_S = 10.0
# Connections at once, and how long one may last however often it says a little.
MOST_AT_ONCE = 32
LONGEST_S = 30.0


class EnrolmentService(ThreadingHTTPServer):
    """Listens with the broker's certificate, which is good for the host's names."""

    daemon_threads = True

    def __init__(self, authority: Authority, *, port: int) -> None:
        self.authority = authority
        self.tokens = Tokens(authority)
        # One at a time, so that a token is used once.
        self.redeeming = threading.Lock()
        self._places = threading.BoundedSemaphore(MOST_AT_ONCE)
        files = authority.folder / "broker"
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            self._context.load_cert_chain(files / "cert.pem", files / "key.pem")
            super().__init__(("0.0.0.0", port), _Handler)
        except OSError as err:
            raise LinkError(f"cannot listen on port {port} ({err}); make a token first, or give another port") from err

    def get_request(self) -> tuple[ssl.SSLSocket, object]:
        """A connection whose handshake is done by the thread that serves it."""
        sock, address = super().get_request()
        sock.settimeout(TIMEOUT_S)
        return self._context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False), address

    def process_request(self, request: Any, client_address: Any) -> None:
        """A thread for each of a few; whoever comes on top of them is turned away at once."""
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve one connection, which ends in time."""
        end = threading.Timer(LONGEST_S, _cut, [request])
        end.daemon = True
        end.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            end.cancel()
            self._places.release()

    def handle_error(self, request: object, client_address: object) -> None:
        """Whoever breaks a connection is not worth a trace."""
        log.debug("a connection from %s broke", client_address, exc_info=True)


def _cut(connection: ssl.SSLSocket) -> None:
    """End a connection under whoever waits for it."""
    with suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    server: EnrolmentService

    def do_GET(self) -> None:
        """The authority's certificate, which anybody may know."""
        if self.path != CA_PATH:
            self._say(HTTPStatus.NOT_FOUND, b"nothing is here")
            return
        self._say(HTTPStatus.OK, self.server.authority.ca.read_bytes())

    def do_POST(self) -> None:
        """A certificate for a token."""
        size = self.headers.get("Content-Length", "")
        if self.path != ENROLL_PATH or not size.isdecimal() or int(size) > MAX_BYTES:
            self._say(HTTPStatus.BAD_REQUEST, b"not a request for a certificate")
            return
        try:
            request = read_record(self.rfile.read(int(size)), EnrolmentRequest, what="the request")
            with self.server.redeeming:
                reply = self.server.tokens.redeem(request)
        except FedwrightError as err:
            log.warning("%s was refused: %s", self.client_address[0], err)
            self._say(HTTPStatus.FORBIDDEN, str(err).encode())
            return
        log.info("%s is enrolled, from %s", reply.info.device, self.client_address[0])
        self._say(HTTPStatus.OK, msgspec.json.encode(reply))

    def _say(self, status: HTTPStatus, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Requests are told above, without what they hold."""
