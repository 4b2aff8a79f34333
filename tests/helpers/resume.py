"""What tests of killed and resumed servers share: links to a real broker, a death, and the state at the end."""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedwright.protocol.link import Link, connect
from fedwright.server_runtime import run as runs
from fedwright.server_runtime.config import RunConfig, config_from_text
from fedwright.server_runtime.rounds import events
from fedwright.server_runtime.run import RunOutcome
from fedwright.server_runtime.run_folder.blobs import open_blobs
from fedwright.server_runtime.run_folder.folder import RunFolder
from fedwright.server_runtime.run_folder.rounds import open_rounds
from fedwright.simulation.simulate import simulate
from helpers.present import present


class Links:
    """Links to a broker at an address, by name."""

    def __init__(self, url: str) -> None:
        self._url = url

    def link(self, name: str) -> Link:
        """A new connection."""
        return connect(self._url, client_id=name)


class Killed(Exception):
    """The server's process is gone."""


def die_after(updates: int, *, first_round: int = 1) -> Callable[[events.Event], None]:
    """An observer that ends the server at this update, counted from a round on."""
    return _dying(updates, lambda event: isinstance(event, events.UpdateTaken) and event.round >= first_round)


def die_at_event(moment: int) -> Callable[[events.Event], None]:
    """An observer that ends the server at this event, whatever it is."""
    return _dying(moment, lambda event: True)


def _dying(moment: int, counts: Callable[[events.Event], bool]) -> Callable[[events.Event], None]:
    left = moment

    def observe(event: events.Event) -> None:
        nonlocal left
        if counts(event):
            left -= 1
            if not left:
                raise Killed

    return observe


def execute(config: RunConfig, text: str, links: Any, *, kills: Sequence[int] = ()) -> RunOutcome:
    """The run over a broker, by servers of which all but the last die at these updates of their lives."""
    for updates in kills:
        with closing(links.link("server")) as link, pytest.raises(Killed):
            runs.execute(config, text, link=link, observer=die_after(updates))
    with closing(links.link("server")) as link:
        return runs.execute(config, text, link=link)


def in_folder(config: RunConfig, folder: Path) -> RunConfig:
    """The same run, kept elsewhere."""
    return replace(config, run=replace(config.run, folder=str(folder)))


def simulated_state(config: RunConfig, text: str, folder: Path, **more: Any) -> bytes:
    """The last state of the same run, simulated in a folder."""
    simulate(in_folder(config, folder), text, **more)
    return final_state(folder)


def final_state(folder: Path) -> bytes:
    """The last saved state of the run named `run` in a folder."""
    return state_of(folder / "run")


def state_of(run_folder: Path) -> bytes:
    """The last saved state of a run."""
    with closing(open_rounds(RunFolder(run_folder))) as store:
        record = present(store.run())
        config = config_from_text(record.config, where="the config of a run")
        return open_blobs(RunFolder(run_folder), config, record).read(store.closed()[-1].state)
