"""How the C library hands memory back to the system."""

import ctypes
from contextlib import suppress

# glibc's M_MMAP_THRESHOLD, and the size with which it begins before it learns larger ones.
_MMAP_THRESHOLD, _LARGE_BYTES = -3, 128 * 1024


def give_back_large_blocks() -> bool:
    """Have large blocks leave the process as soon as they are freed; False where the C library has no such setting.

    By default the first freed block of some size makes the library keep all up to that size. Every name of a file ends
    up in the interpreter's table of names, which is made anew, of a megabyte, each 24,500 of them: of the old one a
    hole would stay.
    """
    with suppress(OSError, AttributeError):
        return bool(ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _LARGE_BYTES))
    return False
