"""`fedwright.Server`: a run over a broker inside a program of one's own."""

import threading
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, cast

from fedwright.api.background import Background
from fedwright.api.results import run_result
from fedwright.api.runs import Run
from fedwright.api.starter import config_with
from fedwright.cli.server_link import open_link
from fedwright.protocol.address import mask
from fedwright.protocol.errors import ConfigError
from fedwright.protocol.link import Link, Received
from fedwright.server_runtime.check_run import check_server
from fedwright.server_runtime.config import config_from_text
from fedwright.server_runtime.config_sections.reading import read_text
from fedwright.server_runtime.rounds import events
from fedwright.server_runtime.rounds.store.storage_errors import plain_storage_errors
from fedwright.server_runtime.run import execute
from fedwright.server_runtime.run_folder.folder import folder_of
from fedwright.server_runtime.run_reader import continued, open_run

WHERE = "Server()"


class _Stopped(Exception):
    """The program asked the server to stop."""


class _StoppableLink:
    """A link whose reader is interrupted when it is asked to stop."""

    def __init__(self, link: Link, asked: threading.Event) -> None:
        self._link = link
        self._asked = asked

    def receive(self, timeout_s: float) -> Received | None:
        """The next message, unless the server is to stop."""
        found = self._link.receive(timeout_s)
        if self._asked.is_set():
            raise _Stopped
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._link, name)


class Server(Background):
    """A run in a thread of this process; use it in a `with` block, or call `run`.

    config: the path of a TOML file, or settings by section: {"method": {"name": "hasa"}, "run": {"rounds": 4}}.
    on_event: called with every event of the run (`fedwright.server_runtime.rounds.events`), from the server's thread.
    """

    def __init__(
        self,
        config: str | Path | Mapping[str, Mapping[str, Any]],
        *,
        rounds: int | None = None,
        on_event: events.Observer = events.ignore,
    ) -> None:
        super().__init__("fedwright-server")
        if isinstance(config, Mapping):
            read, text = config_with(config, where=WHERE)
        else:
            text = read_text(Path(config))
            read = config_from_text(text, where=Path(config).name)
        self.config = continued(read, kind="served", rounds=rounds)
        check_server(self.config)
        self._text = mask(text)
        self._on_event = on_event
        self._asked = threading.Event()
        self._link: Link | None = None

    @property
    def folder(self) -> Path:
        """Where the run is kept."""
        return folder_of(self.config).path

    @property
    def join(self) -> str:
        """The command that brings a device to the server's own broker; it may hold a password."""
        file = self.folder / "broker" / "join"
        if not file.exists():
            raise ConfigError(f"the server's broker is {self.config.fleet.broker}; devices join that one")
        return file.read_text(encoding="utf-8").strip()

    def run(self) -> Run:
        """Serve to the end of the run in this thread."""
        with plain_storage_errors(folder_of(self.config).store), ExitStack() as stack:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._link = open_link(self.config.fleet, self.folder, stack, watch=lambda up: None, as_json=True)
            self._begun.set()
            link = cast(Link, _StoppableLink(self._link, self._asked))
            execute(self.config, self._text, link=link, observer=self._on_event)
        return self.result()

    def result(self) -> Run:
        """What the run came to so far."""
        return Run(self.config, run_result(open_run(self.folder)))

    def wait(self, timeout_s: float | None = None) -> Run:
        """Wait until the run is over or `stop` was called; TimeoutError when neither comes in time."""
        self._thread.join(timeout_s)
        self._raise()
        if self._thread.is_alive():
            raise TimeoutError(f"the run in {self.folder} was not over after {timeout_s} s; it goes on")
        return self.result()

    def stop(self) -> None:
        """Stop serving; nothing is lost, and a server of the same config goes on with the run."""
        self._asked.set()
        if self._link is not None:
            self._link.wake()
        # Asked from a callback, it stops when that has returned.
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _work(self) -> None:
        with suppress(_Stopped):
            self.run()
