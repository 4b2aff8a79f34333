"""An S3 server of a test's own: moto's, in a process that can be killed, or one that only refuses."""

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from helpers.links import wait_until

BUCKET = "blobs"
SECRET = "a-secret-that-no-file-may-hold"


class S3Server:
    """Moto's server on the loopback address; all that it holds goes with it."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "s3.log"
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def wait(self) -> None:
        """Until it answers, and has a bucket."""
        wait_until(lambda: b"Running on http://" in self._log.read_bytes(), timeout_s=120)
        said = self._log.read_text()
        self.url = "http://" + said.split("Running on http://")[1].split()[0]
        self.make_bucket(BUCKET)

    def make_bucket(self, name: str) -> None:
        """An empty bucket."""
        urlopen(Request(f"{self.url}/{name}", method="PUT"), timeout=60).close()

    def reads_by_range(self) -> int:
        """How often a part of an object was read under a signed address."""
        return len(re.findall(rb"GET \S+X-Amz-Signature=\S+ HTTP/1.1\S* 206", self._log.read_bytes()))

    def environment(self) -> dict[str, str]:
        """What a process needs to get in."""
        return {"AWS_ENDPOINT_URL": self.url, "AWS_ACCESS_KEY_ID": "fleet", "AWS_SECRET_ACCESS_KEY": SECRET}

    def enter(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let this process in."""
        for name, value in self.environment().items():
            monkeypatch.setenv(name, value)


@contextmanager
def running_s3(folder: Path) -> Iterator[S3Server]:
    """A server that has begun."""
    server = S3Server(folder)
    try:
        server.wait()
        yield server
    finally:
        server.process.kill()
        server.process.wait()


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
