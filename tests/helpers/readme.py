"""The commands that README shows, word for word, and a person's screen to run them on."""

import os
import pty
import re
import select
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from helpers.tools import REPO

TEXT = (REPO / "README.md").read_text()
BLOCKS = re.findall(r"^```[a-z]*\n(.*?)^```", TEXT, flags=re.DOTALL | re.MULTILINE)
PLAIN = re.sub(r"^```[a-z]*\n.*?^```", "", TEXT, flags=re.DOTALL | re.MULTILINE)
QUOTED = re.findall(r"`([^`\n]+)`", PLAIN)

_PROGRAM = r"(?:sudo )?(?:[A-Z_]+=\S+ )?(?:\S*/)?(?:fedwright|make|pip|python3|mosquitto|systemctl|apt)"
_COMMAND = re.compile(rf"{_PROGRAM} [\w\-~/\"'$]")
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def shown_commands(text: str = TEXT) -> list[str]:
    """Every command in the blocks and in the running text, in order, each once."""
    blocks = re.findall(r"^```[a-z]*\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    plain = re.sub(r"^```[a-z]*\n.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    lines = [line.removeprefix("$ ").strip() for block in blocks for line in block.splitlines()]
    lines += re.findall(r"`([^`\n]+)`", plain)
    # What stands behind two spaces and a # is a remark.
    words = [re.split(r"\s\s+#", line)[0] for line in lines]
    return list(dict.fromkeys(line for line in words if _COMMAND.match(line)))


class Screen:
    """A command in a shell of its own whose output goes to a terminal, so that it takes us for a person."""

    def __init__(self, command: str, *, folder: Path, environment: dict[str, str]) -> None:
        self.command = command
        self.text = ""
        ours, theirs = pty.openpty()
        self._terminal = ours
        self.process = subprocess.Popen(
            ["bash", "-c", f"exec {command}" if re.match(r"[\w./~]+ ", command) else command],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)

    def read_until(self, holds: Callable[[str], object], *, timeout_s: float = 120.0) -> str:
        """Read until what was shown so far satisfies `holds`, or until the command ends; returns all of it."""
        deadline_s = time.monotonic() + timeout_s
        while not holds(self.text):
            left_s = deadline_s - time.monotonic()
            assert left_s > 0, f"`{self.command}` showed within {timeout_s:.0f} s only:\n{self.text}"
            if not select.select([self._terminal], [], [], left_s)[0]:
                continue
            try:
                part = os.read(self._terminal, 65536)
            except OSError:
                # Linux says so when the last process has left the terminal.
                break
            self.text += _ESCAPES.sub("", part.decode(errors="replace")).replace("\r", "")
        return self.text

    def end(self, timeout_s: float = 120.0) -> int:
        """Read to the end; the exit code."""
        self.read_until(lambda text: False, timeout_s=timeout_s)
        return self.process.wait(timeout_s)

    def kill(self, sign: int = signal.SIGKILL) -> None:
        """End the command and what it started; SIGKILL as a power cut would."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, sign)
        self.process.wait(60)

    def close(self) -> None:
        """Leave nothing behind."""
        self.kill()
        os.close(self._terminal)
