"""A PostgreSQL server of a test's own."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from fedwright.benchmarks.harness import engines
from fedwright.benchmarks.harness.engines import NotInstalled, PostgresServer
from helpers.tools import missing

__all__ = ["PostgresServer", "running_postgres"]


@contextmanager
def running_postgres() -> Iterator[PostgresServer]:
    """A server that has begun; gone afterwards with all that it held."""
    with ExitStack() as stack:
        try:
            server = stack.enter_context(engines.running_postgres())
        except NotInstalled as err:
            missing(str(err))
        yield server
