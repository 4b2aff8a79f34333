"""Work in a thread of its own, whose failure is raised where the program waits for it."""

import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import TypeVar

Own = TypeVar("Own", bound="Background")


class Background(ABC):
    """A context manager around one thread; `_begun` is set when the work is under way or has failed."""

    def __init__(self, name: str) -> None:
        self._begun = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._guarded, name=name)

    @abstractmethod
    def _work(self) -> None:
        """What the thread does; it sets `_begun`."""

    @abstractmethod
    def stop(self) -> None:
        """Make the work end."""

    def __enter__(self: Own) -> Own:
        """Begin; what keeps the work from beginning is raised here."""
        self._thread.start()
        self._begun.wait()
        self._raise()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if error is None:
            self._raise()

    def _guarded(self) -> None:
        try:
            self._work()
        except Exception as err:  # noqa: BLE001 - raised again in the thread of whoever waits
            self._failure = err
        finally:
            self._begun.set()

    def _raise(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
