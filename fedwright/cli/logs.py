"""`-v`, `--log-level` and `--log-json` of every command that works for long, on top of the standard logging."""

import argparse
import json
import logging
import re
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

LEVELS = ("debug", "info", "warning", "error")
PLAIN = "%(asctime)s %(levelname)s %(message)s"
# A word before a placeholder says what the argument in its place is.
NAMED = re.compile(r"(?:\b(device|round) )?%(?!%)[^a-zA-Z]*[a-zA-Z]")


def add_log_options(parser: argparse.ArgumentParser) -> None:
    """Add the three options."""
    add = parser.add_argument
    add("-v", "--verbose", action="store_true", help="log everything, on the screen too; the same as --log-level debug")
    add("--log-level", choices=LEVELS, metavar="LEVEL", help=f"log from this level on: {', '.join(LEVELS)}")
    add("--log-json", action="store_true", help="log one JSON object per line, and nothing else on the screen")


def start_logging(args: argparse.Namespace, *, file: Path | None = None, device: str = "", quiet: bool = False) -> None:
    """Log as the options say: into the file, where there is one, and on standard error when asked or without a file.

    device: whose log it is, where all of it is about one. quiet: only warnings unless the options say otherwise.
    """
    level = "debug" if args.verbose else args.log_level or ("warning" if quiet else "info")
    formatter = JsonLines(device) if args.log_json else logging.Formatter(PLAIN)
    handlers: list[logging.Handler] = []
    if file is not None:
        # A log that cannot be written, as on a full disk, must not bury what the command itself says about it.
        logging.raiseExceptions = False
        handlers.append(logging.FileHandler(file, encoding="utf-8", delay=True))
    if file is None or args.verbose or args.log_level or args.log_json:
        handlers.append(StandardError())
    for handler in handlers:
        handler.setLevel(level.upper())
        handler.setFormatter(formatter)
    # What the server warns of reaches the screen and the status at any level of the log.
    logging.basicConfig(level=min(logging.getLevelName(level.upper()), logging.WARNING), handlers=handlers)


def say(line: str, *, as_json: bool) -> None:
    """Tell a person something on standard error, as a line of the log where that is for programs."""
    if as_json:
        logging.getLogger("fedwright.cli").info("%s", line)
    else:
        print(line, file=sys.stderr)


# With Python 3.10 a StreamHandler takes no type while the program runs.
class StandardError(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to standard error as it is now: a live table on a terminal takes its place for a while."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> Any:
        """See StreamHandler."""
        return sys.stderr


class JsonLines(logging.Formatter):
    """One JSON object per record: time, level, logger, message; device and round where they are known."""

    def __init__(self, device: str = "") -> None:
        super().__init__()
        self._device = device

    def format(self, record: logging.LogRecord) -> str:
        """See logging.Formatter."""
        found: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        known = {"device": self._device} | _named(record)
        found |= {key: known[key] for key in ("device", "round") if known.get(key)}
        if record.exc_info:
            found["error"] = self.formatException(record.exc_info)
        return json.dumps(found, ensure_ascii=False)


def _named(record: logging.LogRecord) -> dict[str, Any]:
    """Device and round of a record: as its caller gave them, else as its text names them, such as `device %s`."""
    given = {key: vars(record)[key] for key in ("device", "round") if vars(record).get(key) is not None}
    if isinstance(record.args, tuple) and isinstance(record.msg, str):
        names = [match.group(1) for match in NAMED.finditer(record.msg)]
        return {name: value for name, value in zip(names, record.args, strict=False) if name} | given
    return given
