"""A connection to a Ray cluster; whatever goes wrong with it is one sentence."""

import contextlib
import importlib
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Executor

from fedwright.protocol.errors import ConfigError, EngineError
from fedwright.server_runtime.config_sections.engine import OWN, RUNNING, EngineSection
from fedwright.server_runtime.engine.inline import InlineExecutor

# Nothing is told to anybody about the use of a cluster; and Ray need not warn of a default that will change.
SETTINGS = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
KNOCK_S = 10.0
DEBUGGER = "PYTHONBREAKPOINT"


@contextlib.contextmanager
def open_engine(section: EngineSection) -> Iterator[Executor]:
    """Where the server's own work is done: here, or by the workers of a cluster."""
    if section.kind == "local":
        yield InlineExecutor()
        return
    with connected(section):
        from fedwright.server_runtime.engine.ray_executor import RayExecutor

        executor = RayExecutor(section.workers)
        try:
            yield executor
        finally:
            executor.shutdown(cancel_futures=True)


@contextlib.contextmanager
def connected(section: EngineSection) -> Iterator[None]:
    """Be part of the cluster that the section names; one that was joined before stays as it is."""
    check_ray()
    import ray

    if ray.is_initialized():
        yield
        return
    try:
        _join(section.address)
        yield
    finally:
        ray.shutdown()


def check_ray() -> None:
    """Raise ConfigError unless Ray is installed; to be called before anything imports it."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    try:
        importlib.import_module("ray")
    except ImportError as err:
        raise ConfigError(
            "engine.kind is 'ray' but Ray is not installed; run `pip install 'fedwright[ray]'`, or leave [engine] out"
        ) from err


def _join(address: str) -> None:
    import ray

    try:
        if address not in (RUNNING, OWN):
            _knock(address)
        with own_handlers():
            ray.init(
                address=address,
                log_to_driver=False,
                logging_level=logging.ERROR,
                configure_logging=False,
                include_dashboard=False if address == OWN else None,
            )
    except ConnectionError as err:
        raise EngineError(_unreachable(address)) from err
    except (RuntimeError, ValueError, OSError) as err:
        if "ersion mismatch" in str(err):
            raise EngineError(
                f"{_place(address)} runs other versions: {_versions(str(err))}; install the same"
            ) from err
        raise EngineError(f"{_unreachable(address)} ({_first_line(str(err))})") from err


def _knock(address: str) -> None:
    """Raise ConnectionError where nobody listens: Ray would try for minutes."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=KNOCK_S).close()
    except OSError as err:
        raise ConnectionError(str(err)) from err


@contextlib.contextmanager
def own_handlers() -> Iterator[None]:
    """What happens at SIGTERM, at a breakpoint and at an error that nobody catches stays as it was."""
    hook, handler, debugger = sys.excepthook, signal.getsignal(signal.SIGTERM), os.environ.get(DEBUGGER)
    try:
        yield
    finally:
        sys.excepthook = hook
        if debugger is None:
            os.environ.pop(DEBUGGER, None)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


def _place(address: str) -> str:
    return "the Ray cluster of this machine" if address == RUNNING else f"the Ray cluster at {address}"


def _unreachable(address: str) -> str:
    remedy = "start one with `ray start`" if address == RUNNING else "look at engine.address, and at `ray status` there"
    return f"{_place(address)} cannot be reached; {remedy}, or set engine.address = 'local'"


def _versions(text: str) -> str:
    """What Ray says of both sides, in one line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " ".join(lines)[:300].rstrip(".")


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0][:200]
