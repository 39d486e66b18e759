"""File descriptors: how many connections the operating system lets the hub have.

The hub turns connections away before descriptors run out, so that those it has, its files and its HTTP pages go on.
"""

import contextlib
import resource
from pathlib import Path

OTHERS = 16
"""Descriptors for files that are read again, and the like."""


def raise_limit() -> None:
    """Raise the soft limit of this process to its hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):  # some systems allow less than the hard limit says
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def http_connections() -> int:
    """How many connections the HTTP listener may have: they are few, and always have room."""
    return min(max(resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 16, 32), 256)


def connections_left() -> int:
    """How many connections there can be besides what is open now; at least one."""
    kept = http_connections() + OTHERS
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return 1 << 30
    descriptors = Path("/dev/fd")
    used = sum(1 for _ in descriptors.iterdir()) if descriptors.is_dir() else kept
    return max(1, limit - used - kept)
