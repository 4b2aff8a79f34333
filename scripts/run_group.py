"""One group of tests: pytest with a recorder. Usage: run_group.py EVENTS_FILE PYTEST_ARGUMENT..."""

import sys
from pathlib import Path

import pytest

from testrun.record import Recorder

if __name__ == "__main__":
    sys.exit(pytest.main(sys.argv[2:], plugins=[Recorder(Path(sys.argv[1]))]))
