"""One group of tests: pytest with a recorder. Usage: run_group.py EVENTS_FILE PYTEST_ARGUMENT..."""

import sys
from pathlib import Path

import pytest

from testrun.record import Recorder

if __name__ == "__main__":
    # As `python -m pytest` does: tests may import what lies in the current folder.
    sys.path.insert(0, str(Path.cwd()))
    sys.exit(pytest.main(sys.argv[2:], plugins=[Recorder(Path(sys.argv[1]))]))
