"""A freed block of a megabyte leaves the process, whatever sizes were freed before."""

import platform
import subprocess
import sys

import pytest

# Blocks of a megabyte, each beside the one before: the library keeps the first to be freed once it has seen its size.
PROGRAM = """
import sys
from fedwright.protocol.support.memory import give_back_large_blocks

def own():
    rss, shared = map(int, open("/proc/self/statm").read().split()[1:3])
    return (rss - shared) * 4096

if "give" in sys.argv:
    assert give_back_large_blocks()
bytearray(4_000_000)
block, pins = bytearray(1_000_000), []
began = own()
for _ in range(8):
    larger = bytearray(len(block) + 100_000)
    pins.append(bytes(100_000))
    block = larger
print(own() - began)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is another one")
def test_large_blocks_go_back_to_the_system() -> None:
    grown = {
        word: int(
            subprocess.run([sys.executable, "-c", PROGRAM, word], capture_output=True, text=True, check=True).stdout
        )
        for word in ("keep", "give")
    }

    # Eight pins and a block that is 0.8 MB larger than the first.
    assert grown["give"] < 2_000_000 < grown["keep"]
