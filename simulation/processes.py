"""Processes that begin with nothing of the program that starts them."""

import signal
import sys
from multiprocessing.context import SpawnContext, SpawnProcess
from types import ModuleType


class _FreshProcess(SpawnProcess):
    """A process that does not run the program's main file again, as spawned ones otherwise do.

    A script that calls `fedwright.simulate` without asking for its `__name__` would start itself over and over.
    """

    def start(self) -> None:
        """Begin; meanwhile the main module looks empty, which is all that a new process would import of it.

        A terminal sends Ctrl-C to all processes at once; what starts with that signal held back leaves it to this one,
        also before it has come to say so itself.
        """
        main = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            super().start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            sys.modules["__main__"] = main


class FreshProcesses(SpawnContext):
    """A way to start processes; not by fork, because the runtimes in this process have threads of their own."""

    Process = _FreshProcess
