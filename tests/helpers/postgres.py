"""A PostgreSQL server of a test's own, in a folder that goes with it."""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from helpers.links import wait_until
from helpers.tools import missing

# PostgreSQL does not run as root.
USER = "postgres" if os.geteuid() == 0 else None


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
            # Tests outlive no power cut.
            command = [_program("postgres"), *options, "-F"]
            self._process = subprocess.Popen(command, stdout=log, stderr=log, user=USER, cwd=self._folder)
        wait_until(self._answers, timeout_s=60)

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
        missing("PostgreSQL is not installed; run `make setup` as root or install its package postgresql")
    return program


def _run(name: str, *arguments: str) -> None:
    subprocess.run([_program(name), *arguments], user=USER, check=True, capture_output=True, cwd="/", timeout=120)
