"""The first thing an emulated device runs: takes its limits upon itself, then becomes the agent.

Run as `python -m fedwright.device_runtime.emulate.child PARENT MEMORY_BYTES NICE PROGRAM ARGUMENT…` where PARENT is
the process id of the parent.
"""

import os
import resource
import sys

from fedwright.protocol.support.parent import die_with_parent


def main(arguments: list[str]) -> None:
    """Set the limits, which outlast the exec, and become the program."""
    parent, memory_bytes, nice, program, *rest = arguments
    die_with_parent(int(parent))
    resource.setrlimit(resource.RLIMIT_DATA, (int(memory_bytes), int(memory_bytes)))
    os.nice(int(nice))
    os.execv(program, [program, *rest])


if __name__ == "__main__":
    main(sys.argv[1:])
