"""Whoever holds connections to the enrolment service without asking for anything keeps nobody else out for long."""

import http.client
import socket
import ssl
import threading
from pathlib import Path

import pytest

from fedwright.protocol.enrolment import CA_PATH
from fedwright.server_runtime.fleet import enrolment_service
from fedwright.server_runtime.fleet.authority import Authority
from fedwright.server_runtime.fleet.enrolment_service import EnrolmentService
from fedwright.server_runtime.fleet.trust import secure_broker
from helpers.links import wait_until

WAIT_S = 60.0
PLACES = 3


def asked(where: tuple[str, int]) -> bytes:
    """What the service says to a device that asks; nothing where it is turned away."""
    connection = http.client.HTTPSConnection(*where, context=ssl._create_unverified_context(), timeout=WAIT_S)
    try:
        connection.request("GET", CA_PATH)
        return connection.getresponse().read()
    except (OSError, http.client.HTTPException):
        return b""
    finally:
        connection.close()


def test_connections_are_few_and_end_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enrolment_service, "MOST_AT_ONCE", PLACES)
    monkeypatch.setattr(enrolment_service, "LONGEST_S", 1.0)
    monkeypatch.setattr(enrolment_service, "TIMEOUT_S", 10 * WAIT_S)
    authority = Authority.create(tmp_path / "trust")
    secure_broker(authority, fleet="home", hosts=["localhost"])
    with EnrolmentService(authority, port=0) as service:
        serving = threading.Thread(target=service.serve_forever)
        serving.start()
        where = ("127.0.0.1", service.server_address[1])
        silent = [socket.create_connection(where, timeout=WAIT_S) for _ in range(PLACES + 2)]
        # Those beyond the places at once, the others in time; nobody has said anything.
        ended = [connection.recv(1) for connection in silent]
        # A place is free again once its thread has ended, which may be later.
        wait_until(lambda: asked(where) == authority.ca.read_bytes(), timeout_s=WAIT_S)
        for connection in silent:
            connection.close()
        service.shutdown()
        serving.join()

    assert ended == [b""] * len(silent)
