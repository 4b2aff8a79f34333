"""What `server run`, `server resume` and `simulate` share: a run begins anew, or turns out complete."""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedwright.server_runtime.config import RunConfig
    from fedwright.server_runtime.run_reader import PastRun


def begin_anew(config: "RunConfig") -> None:
    """Give the run in a config's folder another one, and say which."""
    from fedwright.server_runtime.run_folder.folder import folder_of
    from fedwright.server_runtime.run_folder.rounds import set_aside

    folder = folder_of(config)
    aside = set_aside(folder, config.store.database)
    if aside is not None:
        print(f"the run that was in {folder.path} is in {aside} now", file=sys.stderr)


def say_complete(past: "PastRun", again: str, anew: str) -> None:
    """Say that nothing was left to do, and how to go on."""
    from fedwright.server_runtime.config import config_from_text

    rounds = past.config.run.rounds
    more = max(2 * rounds, config_from_text(past.text, where=str(past.folder.path)).run.rounds)
    other = f"start anew with `{anew}` (this run is kept) or another run.name" if anew else "start another run"
    print(
        f"{past.folder.path} is complete with {rounds} rounds; give it more with `{again} --rounds {more}`, or {other}"
    )
