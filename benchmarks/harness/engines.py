"""Engines beside a server, each in a folder that goes with it: PostgreSQL, and an S3 server (moto's)."""

import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

import psycopg

from fedwright.protocol.errors import ConfigError

# PostgreSQL does not run as root.
USER = "postgres" if os.geteuid() == 0 else None


BUCKET = "blobs"
SECRET = "a-secret-that-no-file-may-hold"


class NotInstalled(ConfigError):
    """The machine lacks an engine."""


class PostgresServer:
    """A real server on the loopback address."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"postgresql://postgres@127.0.0.1:{self.port}/postgres"
        _run("initdb", "-D", str(folder / "data"), "-U", "postgres", "-A", "trust", "--no-sync", "--no-locale")

    def start(self) -> None:
        """Start it and wait until it answers."""
        options = ["-D", str(self._folder / "data"), "-p", str(self.port), "-h", "127.0.0.1", "-k", str(self._folder)]
        with (self._folder / "log").open("ab") as log:
            # What is measured or tested outlives no power cut.
            command = [_program("postgres"), *options, "-F"]
            self._process = subprocess.Popen(command, stdout=log, stderr=log, user=USER, cwd=self._folder)
        _wait_until(self._answers, timeout_s=60)

    def kill(self) -> None:
        """SIGKILL to the server; its children follow by themselves."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Break all connections and end."""
        self._end(signal.SIGQUIT)

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(60)
            self._process = None

    def sever(self) -> None:
        """Break every connection of others."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid != pg_backend_pid()")

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.url, connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True


@contextmanager
def running_postgres() -> Iterator[PostgresServer]:
    """A server that has begun; gone afterwards with all that it held."""
    folder = Path(tempfile.mkdtemp(prefix="postgres-"))
    if USER is not None:
        os.chown(folder, pwd.getpwnam(USER).pw_uid, pwd.getpwnam(USER).pw_gid)
    try:
        server = PostgresServer(folder)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _program(name: str) -> str:
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    program = shutil.which(name) or (str(found[-1]) if found else None)
    if program is None:
        raise NotInstalled("PostgreSQL is not installed; run `make setup` as root or install its package postgresql")
    return program


def _run(name: str, *arguments: str) -> None:
    subprocess.run([_program(name), *arguments], user=USER, check=True, capture_output=True, cwd="/", timeout=120)


def _wait_until(holds: Callable[[], bool], *, timeout_s: float) -> None:
    until_s = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > until_s:
            raise ConfigError(f"an engine did not answer within {timeout_s:.0f} s; see what it says in its log")
        time.sleep(0.05)


class S3Server:
    """Moto's server on the loopback address; all that it holds goes with it."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "s3.log"
        self.url = ""
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def __enter__(self) -> "S3Server":
        try:
            _wait_until(lambda: b"Running on http://" in self._log.read_bytes(), timeout_s=120)
        except BaseException:
            self.__exit__()
            raise
        self.url = "http://" + self._log.read_text().split("Running on http://")[1].split()[0]
        urlopen(Request(f"{self.url}/{BUCKET}", method="PUT"), timeout=60).close()
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def reads_by_range(self) -> int:
        """How often a part of an object was read under a signed address."""
        return len(re.findall(rb"GET \S+X-Amz-Signature=\S+ HTTP/1.1\S* 206", self._log.read_bytes()))

    def environment(self) -> dict[str, str]:
        """What a process needs to get in."""
        return {"AWS_ENDPOINT_URL": self.url, "AWS_ACCESS_KEY_ID": "fleet", "AWS_SECRET_ACCESS_KEY": SECRET}
