"""Settings of the C allocator for a process that moves many octets.

By default glibc gives a freed block at the top of the heap back to the kernel, and takes large blocks from it one by
one; a process that reads and forwards chunks then spends its time in page faults. A hub keeps that memory instead.
"""

import ctypes
import sys

M_TRIM_THRESHOLD = -1
M_TOP_PAD = -2
M_MMAP_THRESHOLD = -3

SETTINGS = ((M_MMAP_THRESHOLD, 4 << 20), (M_TRIM_THRESHOLD, 16 << 20), (M_TOP_PAD, 1 << 20))


def tune_allocator() -> bool:
    """Tell the allocator to keep what it has. Returns whether it could be told (glibc only)."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return all(mallopt(setting, value) == 1 for setting, value in SETTINGS)
