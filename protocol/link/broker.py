"""Starts a broker of our own: mosquitto when it is installed, else amqtt in a child process."""

import errno
import getpass
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal

from fedwright.protocol.codec import MAX_MESSAGE_BYTES
from fedwright.protocol.errors import LinkError
from fedwright.protocol.link.passwords import BrokerPasswords, rights
from fedwright.protocol.link.security import BrokerTls
from fedwright.protocol.support.files import write_private

Kind = Literal["mosquitto", "amqtt"]

START_TIMEOUT_S = 20.0
STOP_TIMEOUT_S = 5.0
POLL_S = 0.02
PORT_TRIES = 5

# What a device may have waiting for it; more means that it does not read.
QUEUED_MESSAGES = 10_000
INFLIGHT_MESSAGES = 100
# Chunks come and go by the thousand; glibc would return each to the system and fault its pages in again, which
# doubles the broker's CPU time.
MALLOC = {
    "MALLOC_MMAP_THRESHOLD_": str(4 * 1024 * 1024),
    "MALLOC_TRIM_THRESHOLD_": str(16 * 1024 * 1024),
    "MALLOC_TOP_PAD_": str(1024 * 1024),
}


def find_mosquitto() -> str | None:
    """Path of the mosquitto program, also where Debian hides it from ordinary users."""
    return shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin:/opt/homebrew/sbin")


def mosquitto_config(listener: Sequence[str], *, folder: Path, durable: bool, user: str | None = None) -> str:
    """A mosquitto configuration around the lines that describe its listener; `user` is who it runs as."""
    lines = [
        *([f"user {user}"] if user else []),
        *listener,
        "set_tcp_nodelay true",
        f"max_queued_messages {QUEUED_MESSAGES}",
        f"max_inflight_messages {INFLIGHT_MESSAGES}",
        f"max_packet_size {MAX_MESSAGE_BYTES + 1024}",
        "persistent_client_expiration 1d",
        f"persistence {'true' if durable else 'false'}",
        "log_dest stderr",
        "log_type error",
        "log_type warning",
    ]
    if durable:
        lines += [f"persistence_location {folder}/", "autosave_interval 5"]
    return "\n".join(lines) + "\n"


class PortTaken(LinkError):
    """Something else listens where a broker should."""


class Broker:
    """A broker process, by default for development and tests: open to everybody on the loopback address only.

    It dies with the thread that started it, so start it from one that lives as long as it is needed.
    With `passwords` it asks for one, on every address. With `tls` it lets in only holders of a certificate, on every
    address; that takes mosquitto.
    """

    def __init__(
        self,
        *,
        port: int = 0,
        kind: Kind | None = None,
        folder: Path | None = None,
        tls: BrokerTls | None = None,
        passwords: BrokerPasswords | None = None,
    ) -> None:
        self._program = find_mosquitto()
        if tls is not None:
            kind = "mosquitto"
        if kind == "mosquitto" and self._program is None:
            raise LinkError("mosquitto is not installed, which a broker with certificates needs; apt install mosquitto")
        self.kind: Kind = kind or ("mosquitto" if self._program else "amqtt")
        if self.kind == "amqtt" and importlib.util.find_spec("amqtt") is None:
            raise LinkError("no broker is installed; run `apt install mosquitto` or `pip install fedwright[server]`")
        self._wanted_port = port
        self._tls = tls
        self._passwords = passwords
        self._durable = folder is not None
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._folder = folder or Path()
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    @property
    def url(self) -> str:
        """What to give to `connect` on this machine."""
        return f"{'mqtts' if self._tls else 'mqtt'}://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Process id of the running broker."""
        if self._process is None:
            raise LinkError("the broker is not running; start it first")
        return self._process.pid

    def start(self) -> "Broker":
        """Start and wait until it accepts connections."""
        if not self._durable:
            self._temporary = tempfile.TemporaryDirectory(prefix="fedwright-broker-")
            self._folder = Path(self._temporary.name)
        try:
            self._start_on_some_port()
        except LinkError:
            self.stop()
            raise
        return self

    def kill(self) -> None:
        """SIGKILL, as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def restart(self) -> None:
        """Start again on the same port."""
        self.kill()
        self._launch()

    def reload(self) -> None:
        """Make mosquitto read its access list and its void certificates again; connections stay."""
        os.kill(self.pid, signal.SIGHUP)

    def stop(self) -> None:
        """Stop in good order and remove what it left."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.kill()
            self._process = None
        if self._temporary is not None:
            self._temporary.cleanup()

    def __enter__(self) -> "Broker":
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _start_on_some_port(self) -> None:
        for tries_left in reversed(range(1 if self._wanted_port else PORT_TRIES)):
            self.port = self._wanted_port or _free_port()
            try:
                self._launch()
            except LinkError:
                # Somebody else may have taken the free port in between.
                if not tries_left:
                    raise
            else:
                return

    def _launch(self) -> None:
        if not is_free(self.port, everywhere=self._tls is not None or self._passwords is not None):
            raise PortTaken(f"port {self.port} is in use; stop what listens there or choose another port")
        log_file = self._folder / "broker.log"
        with log_file.open("wb") as log:
            self._process = subprocess.Popen(
                self._command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=os.environ | MALLOC
            )
        self._wait_ready(self._process, log_file)

    def _command(self) -> list[str]:
        launch = [sys.executable, "-m", "fedwright.protocol.link.broker_child", str(os.getpid())]
        if self.kind == "amqtt":
            return [*launch, "amqtt", str(self._amqtt_settings())]
        config = self._folder / "mosquitto.conf"
        lines = self._listener()
        config.write_text(mosquitto_config(lines, folder=self._folder, durable=self._durable, user=getpass.getuser()))
        return [*launch, "exec", str(self._program), "-c", str(config)]

    def _listener(self) -> list[str]:
        if self._tls is not None:
            return self._tls.listener(self.port, "0.0.0.0")
        if self._passwords is not None:
            return self._passwords.listener(self.port, self._folder)
        return [f"listener {self.port} 127.0.0.1", "allow_anonymous true"]

    def _amqtt_settings(self) -> Path:
        """The file that its child process reads, because everybody can read the arguments of a process."""
        users = None if self._passwords is None else dict(self._passwords.users)
        file = self._folder / "amqtt.json"
        write_private(file, json.dumps({"port": self.port, "users": users, "rights": rights()}))
        return file

    def _wait_ready(self, process: subprocess.Popen[bytes], log_file: Path) -> None:
        for _ in range(int(START_TIMEOUT_S / POLL_S)):
            if _accepts(self.port):
                return
            try:
                process.wait(POLL_S)
            except subprocess.TimeoutExpired:
                continue
            break
        self.kill()
        said = " / ".join(log_file.read_text(errors="replace").strip().splitlines()[-3:]) or "it said nothing"
        raise LinkError(f"{self.kind} did not start on port {self.port} ({said}); check its configuration")


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def is_free(port: int, *, everywhere: bool) -> bool:
    """Whether a port can be listened on, at every address of this machine or at the loopback address."""
    hosts = [(socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")] if everywhere else [(socket.AF_INET, "127.0.0.1")]
    return all(_can_bind(family, host, port) for family, host in hosts)


def _can_bind(family: socket.AddressFamily, host: str, port: int) -> bool:
    try:
        sock = socket.socket(family)
    except OSError:
        # A machine without IPv6.
        return True
    with sock:
        # Connections of a killed broker linger in TIME_WAIT; they do not make the port taken.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            sock.bind((host, port))
        except OSError as err:
            return err.errno == errno.EADDRNOTAVAIL
    return True


def _accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
    except OSError:
        return False
    return True
