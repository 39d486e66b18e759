"""What a hub's process does about its memory: settings of the C allocator, and no pandas.

By default glibc gives a freed block at the top of the heap back to the kernel, and takes large blocks from it one by
one; a process that reads and forwards chunks then spends its time in page faults. A hub keeps that memory instead.
"""

import ctypes
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec

M_TRIM_THRESHOLD = -1
M_TOP_PAD = -2
M_MMAP_THRESHOLD = -3

SETTINGS = ((M_MMAP_THRESHOLD, 4 << 20), (M_TRIM_THRESHOLD, 16 << 20), (M_TOP_PAD, 1 << 20))


def tune_allocator() -> bool:
    """Make the allocator keep freed memory. Returns whether that worked (glibc only)."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return all(mallopt(setting, value) == 1 for setting, value in SETTINGS)


def leave_out_pandas() -> None:
    """Let nothing in this process import pandas.

    Arrow imports it, where it is installed, as soon as it makes an array of Python objects, only to find out whether
    they are pandas's. That costs time at every start and tens of MiB, in a process that never uses it.
    """
    if not any(isinstance(finder, _NoPandas) for finder in sys.meta_path):
        sys.meta_path.insert(0, _NoPandas())


class _NoPandas:
    """A finder of modules, asked before all others."""

    def find_spec(self, name: str, _path: Sequence[str] | None = None, _target: object = None) -> ModuleSpec | None:
        """Find nothing, and end the search where it is for pandas."""
        if name == "pandas":
            raise ModuleNotFoundError("pandas is left out of this process", name=name)
        return None
