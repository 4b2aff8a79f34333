"""A Ray cluster that `fedwright bench --ray` lets do the simulations of a suite, several at a time."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from contextlib import contextmanager
from typing import Any, TypeVar

from fedwright.protocol.support.steps import steps
from fedwright.server_runtime.config_sections.engine import EngineSection
from fedwright.server_runtime.engine.cluster import connected

T = TypeVar("T")

# Where workers look for data sets, as this process does.
PASSED_ON = ("FEDWRIGHT_DATA",)
# As in tracking: suites make their jobs without knowing who does them.
_open: list[EngineSection] = []


@contextmanager
def on_cluster(address: str | None) -> Iterator[None]:
    """Inside the block the cluster at an address does all simulations; None: this machine does."""
    if address is None:
        yield
        return
    section = EngineSection("ray", address)
    _open.append(section)
    try:
        yield
    finally:
        _open.remove(section)


def cluster_section() -> EngineSection | None:
    """The cluster that was asked for, if any."""
    return _open[-1] if _open else None


def on_workers(
    section: EngineSection, function: Callable[..., T], items: Sequence[Any], *, done: Callable[[int, T], None]
) -> list[T]:
    """What a function makes of each item, in their order; done: told of each by its number, as it comes."""
    with connected(section):
        from fedwright.server_runtime.engine.ray_executor import RayExecutor

        settings = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        # A long simulation is no slow worker's.
        executor = RayExecutor(section.workers, begin=(_begin, (settings,)), twice=False)
        try:
            work = {executor.submit(function, item): number for number, item in enumerate(items)}
            with steps("simulations", len(items)) as advance:
                for one in as_completed(work):
                    done(work[one], one.result())
                    advance()
            return [one.result() for one in work]
        finally:
            executor.shutdown(cancel_futures=True)


def _begin(settings: Mapping[str, str]) -> None:
    """What a worker does first."""
    import torch

    os.environ.update(settings)
    torch.set_num_threads(1)
