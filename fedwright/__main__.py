"""`python -m fedwright` is the command `fedwright`."""

import sys

from fedwright.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
