"""The guard over what tests leave behind finds each kind of it."""

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers.global_state import changes, global_state, leftover_threads
from helpers.tools import REPO


def _raise_level() -> Callable[[], None]:
    logger = logging.getLogger("fedwright.planted")
    logger.setLevel(logging.ERROR)
    return lambda: logger.setLevel(logging.NOTSET)


def _add_handler() -> Callable[[], None]:
    handler = logging.NullHandler()
    logging.getLogger().addHandler(handler)
    return lambda: logging.getLogger().removeHandler(handler)


def _set_variable() -> Callable[[], None]:
    os.environ["PLANTED"] = "1"
    return lambda: os.environ.__delitem__("PLANTED")


def _go_elsewhere() -> Callable[[], None]:
    before = os.getcwd()
    os.chdir("/")
    return lambda: os.chdir(before)


def _handle_signal() -> Callable[[], object]:
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    return lambda: signal.signal(signal.SIGUSR1, before)


def _draw() -> Callable[[], None]:
    before = np.random.get_state()
    np.random.random()
    return lambda: np.random.set_state(before)


def _mask_errors() -> Callable[[], object]:
    before = np.seterr(over="raise" if np.geterr()["over"] != "raise" else "ignore")
    return lambda: np.seterr(**before)


def _more_threads() -> Callable[[], None]:
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    return lambda: torch.set_num_threads(before)


def _double() -> Callable[[], None]:
    torch.set_default_dtype(torch.float64)
    return lambda: torch.set_default_dtype(torch.float32)


def _deterministic() -> Callable[[], None]:
    torch.use_deterministic_algorithms(True)
    return lambda: torch.use_deterministic_algorithms(False)


def _no_gradients() -> Callable[[], object]:
    torch.set_grad_enabled(False)
    return lambda: torch.set_grad_enabled(True)


def _socket_timeout() -> Callable[[], None]:
    socket.setdefaulttimeout(3)
    return lambda: socket.setdefaulttimeout(None)


PLANTED = {
    "logger fedwright.planted": _raise_level,
    "logger root": _add_handler,
    "variable PLANTED: not there before, '1' after": _set_variable,
    "current folder": _go_elsewhere,
    "handler of SIGUSR1": _handle_signal,
    "numpy random state": _draw,
    "numpy errors": _mask_errors,
    "torch threads": _more_threads,
    "torch default type: torch.float32 before, torch.float64 after": _double,
    "torch deterministic: False before, True after": _deterministic,
    "torch gradients on": _no_gradients,
    "socket's default timeout: None before, 3.0 after": _socket_timeout,
}


@pytest.mark.parametrize(("words", "plant"), PLANTED.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_a_planted_change_is_found_and_gone_when_it_is_undone(
    words: str, plant: Callable[[], Callable[[], object]]
) -> None:
    before = global_state()

    undo = plant()
    found = changes(before, global_state())
    undo()

    assert len(found) == 1
    assert words in found[0]
    assert changes(before, global_state()) == []


def test_an_import_is_no_change() -> None:
    state = global_state()
    without = {name: value for name, value in state.items() if not name.startswith(("numpy ", "torch "))}

    assert changes(without, state) == []


def test_a_thread_that_goes_on_is_found_and_one_that_ends_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("helpers.global_state.ENDING_S", 0.05)
    before = set(threading.enumerate())
    done = threading.Event()
    thread = threading.Thread(target=done.wait, name="planted")
    thread.start()

    assert leftover_threads(before) == ["thread planted still runs"]
    done.set()
    thread.join()
    assert leftover_threads(before) == []


def test_the_test_that_left_something_fails_by_name_and_a_module_too(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("from helpers.global_state import leaves_nothing, module_leaves_nothing\n")
    (tmp_path / "test_planted.py").write_text(
        "import os, pytest\n"
        "@pytest.fixture(scope='module')\ndef late():\n    yield\n    os.environ['LATE'] = '1'\n"
        "def test_clean(late): pass\ndef test_leaves(): os.environ['LEFT'] = '1'\n"
    )
    options = ["-c", str(REPO / "pyproject.toml"), "-q", "--rootdir", str(tmp_path), "-p", "no:cacheprovider"]

    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(tmp_path)], capture_output=True, text=True, check=False
    )

    assert "2 passed, 1 error" in done.stdout
    assert "test_leaves left behind: variable LEFT: not there before, '1' after" in done.stdout
    assert "test_planted.py left behind: variable LATE: not there before, '1' after" in done.stdout
