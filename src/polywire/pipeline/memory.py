"""How much memory there is for Spark, and how much it gets where nobody says."""

import re
from pathlib import Path
from typing import Final

from polywire.pipeline.errors import MemoryMissingError, OptionError

LEAST: Final = 512 << 20
MOST: Final = 8 << 30
"""Above this a longer pause of the garbage collector costs more than the memory brings."""

MEMINFO: Final = Path("/proc/meminfo")
CGROUP: Final = Path("/sys/fs/cgroup")

UNITS: Final = {"k": 10, "m": 20, "g": 30, "t": 40}


def driver_memory(wanted: str | None) -> str:
    """What to give the driver, as Spark writes it: ``wanted`` if it is there, else a quarter of the machine."""
    available = available_memory()
    if wanted is not None:
        octets = parse_memory(wanted)
    else:
        octets = min(max(LEAST * 2, total_memory() // 4), MOST)
        if available is not None and available < octets:
            octets = max(available // 2, LEAST)
    # The heap is not touched at once, so a little less than all of it being free is no reason to refuse.
    if available is not None and available < octets * 3 // 4:
        raise MemoryMissingError(octets, available)
    return f"{octets >> 20}m"


def parse_memory(text: str) -> int:
    """Octets of ``512m``, ``4g`` and the like."""
    found = re.fullmatch(r"(\d+)\s*([kmgt])(?:i?b)?", text.strip().lower())
    if found is None:
        raise OptionError("memory", f"{text!r} is not an amount of memory; write 512m or 4g")
    octets = int(found[1]) << UNITS[found[2]]
    if octets < LEAST:
        raise OptionError("memory", f"{text!r} is too little: Spark needs {LEAST >> 20}m or more")
    return octets


def total_memory() -> int:
    """The machine's memory, or what its container may use of it."""
    total = _meminfo("MemTotal") or LEAST * 2
    limit = _cgroup("memory.max")
    return min(total, limit) if limit is not None else total


def available_memory() -> int | None:
    """What can be had without swapping, or None where the system doesn't say."""
    free = _meminfo("MemAvailable")
    limit, used = _cgroup("memory.max"), _cgroup("memory.current")
    if free is not None and limit is not None and used is not None:
        return min(free, max(limit - used, 0))
    return free


def _meminfo(key: str) -> int | None:
    try:
        text = MEMINFO.read_text(encoding="ascii")
    except OSError:
        return None
    found = re.search(rf"^{key}:\s+(\d+) kB", text, re.MULTILINE)
    return int(found[1]) << 10 if found is not None else None


def _cgroup(name: str) -> int | None:
    try:
        text = (CGROUP / name).read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
