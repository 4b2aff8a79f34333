"""An S3 server of a test's own: moto's, in a process that can be killed, or one that only refuses."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fedwright.benchmarks.harness import engines
from fedwright.benchmarks.harness.engines import BUCKET, SECRET

__all__ = ["BUCKET", "SECRET", "S3Server", "refusing_s3", "running_s3"]


class S3Server(engines.S3Server):
    """Moto's server, to which a test's own process can be let in."""

    def enter(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let this process in."""
        for name, value in self.environment().items():
            monkeypatch.setenv(name, value)


@contextmanager
def running_s3(folder: Path) -> Iterator[S3Server]:
    """A server that has begun."""
    server = S3Server(folder)
    with server:
        yield server


@contextmanager
def refusing_s3(status: int, code: str) -> Iterator[str]:
    """The address of a server that refuses every request with an error of S3."""

    class Refusal(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            body = f"<Error><Code>{code}</Code><Message>about {SECRET}</Message></Error>".encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_PUT = do_POST = do_DELETE = do_HEAD = do_GET

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Refusal) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
