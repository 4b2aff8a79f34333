"""What a test must leave as it found it: everything of the process that another test could stumble over."""

import logging
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

# pytest's own, and what libraries set for good when they are first imported.
NOT_OURS = {"PYTEST_CURRENT_TEST", "PYTEST_VERSION"}
NOT_OURS |= {"KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK", "TORCHINDUCTOR_CACHE_DIR"}
# pytest-timeout sets this one anew for every test.
SIGNALS = [number for number in signal.Signals if number is not signal.SIGALRM]
# A thread that was told to end may need a moment, on a busy machine a long one.
ENDING_S = 10.0
LIMITS = ("RLIMIT_AS", "RLIMIT_CORE", "RLIMIT_CPU", "RLIMIT_DATA", "RLIMIT_FSIZE", "RLIMIT_NOFILE", "RLIMIT_STACK")
OURS = "fedwright"
State = Mapping[str, object]


@pytest.fixture(autouse=True, scope="module")
def module_leaves_nothing(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails where fixtures that a module's tests share leave something."""
    yield from _leaving_nothing(request.node.name)


@pytest.fixture(autouse=True)
def leaves_nothing(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test that leaves something of the process other than it was."""
    yield from _leaving_nothing(request.node.name)


def _leaving_nothing(name: str) -> Iterator[None]:
    before, threads = global_state(), set(threading.enumerate())
    yield
    left = [*leftover_threads(threads), *changes(before, global_state())]
    if left:
        pytest.fail(f"{name} left behind: {'; '.join(left)}", pytrace=False)


def global_state() -> dict[str, object]:
    """The process as it is now; of numpy and torch only where they are imported."""
    state: dict[str, object] = {
        "current folder": os.getcwd(),
        "sys.path": tuple(sys.path),
        "sys.excepthook": sys.excepthook,
        "threading.excepthook": threading.excepthook,
        "socket's default timeout": socket.getdefaulttimeout(),
        "priority": os.getpriority(os.PRIO_PROCESS, 0),
        "cores": frozenset(os.sched_getaffinity(0)),
    }
    state |= {f"variable {name}": value for name, value in os.environ.items() if name not in NOT_OURS}
    state |= {f"handler of {number.name}": signal.getsignal(number) for number in SIGNALS}
    state |= {f"limit {name}": resource.getrlimit(getattr(resource, name)) for name in LIMITS}
    return state | _loggers() | _numpy() | _torch()


def changes(before: State, after: State) -> list[str]:
    """What differs, in words; numpy or torch imported in between does not count."""
    arrived = {name.partition(" ")[0] for name in after} - {name.partition(" ")[0] for name in before}
    names = sorted({*before, *after})
    differing = [name for name in names if before.get(name) != after.get(name)]
    relevant = [name for name in differing if name.partition(" ")[0] not in arrived & {"numpy", "torch"}]
    return [f"{name}: {_shown(before, name)} before, {_shown(after, name)} after" for name in relevant]


def leftover_threads(before: set[threading.Thread]) -> list[str]:
    """Threads that began since and do not end."""
    begun = [thread for thread in threading.enumerate() if thread not in before]
    for thread in begun:
        if thread is not threading.current_thread():
            thread.join(ENDING_S)
    return [f"thread {thread.name} still runs" for thread in begun if thread.is_alive()]


def _shown(state: State, name: str) -> str:
    return repr(state[name])[:200] if name in state else "not there"


def _loggers() -> dict[str, object]:
    """The root's and ours: libraries set up theirs when they are first used."""
    made = [logger for logger in logging.root.manager.loggerDict.values() if isinstance(logger, logging.Logger)]
    watched = [logging.root, *(logger for logger in made if logger.name.partition(".")[0] == OURS)]
    settings = {
        f"logger {logger.name}": (logger.level, tuple(map(id, logger.handlers)), logger.propagate, logger.disabled)
        for logger in watched
    }
    # A logger that was only asked for is no change.
    kept = {name: setting for name, setting in settings.items() if setting != (logging.NOTSET, (), True, False)}
    return {"logging switched off up to": logging.root.manager.disable, **kept}


def _numpy() -> dict[str, object]:
    if "numpy" not in sys.modules:
        return {}
    import numpy as np

    drawn: Any = np.random.get_state(legacy=False)["state"]
    return {
        "numpy random state": (hash(drawn["key"].tobytes()), drawn["pos"]),
        "numpy errors": tuple(np.geterr().items()),
    }


def _torch() -> dict[str, object]:
    """Not the state of its random numbers: making a module draws some before it gets its own weights."""
    if "torch" not in sys.modules:
        return {}
    import torch

    return {
        "torch threads": torch.get_num_threads(),
        "torch default type": torch.get_default_dtype(),
        "torch gradients on": torch.is_grad_enabled(),
        "torch inference mode": torch.is_inference_mode_enabled(),
        "torch deterministic": torch.are_deterministic_algorithms_enabled(),
        "torch deterministic, warnings only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "torch matmul precision": torch.get_float32_matmul_precision(),
        "torch oneDNN on": torch.backends.mkldnn.enabled,
        "torch cudnn": (torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark),
    }
