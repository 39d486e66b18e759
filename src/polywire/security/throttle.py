"""What failed logins cost an address.

The first few are free; each further one doubles the time the address has to wait, up to a bound. A right login does
not wash the wrong ones away, or who has one account could guess at the others in between. No clock is read here:
callers pass the time, in seconds, of a clock that only runs forward.
"""

import ipaddress
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final


@dataclass(slots=True)
class Failures:
    """The failures of one address: how many, when the latest was, and until when it waits."""

    count: int = 0
    latest: float = 0.0
    until: float = 0.0


class Throttle:
    """Failed logins by address, bounded in number; safe to use from several threads.

    ``free`` failures cost nothing, the next one ``first`` seconds, each one after that twice as many, at most
    ``longest``. An address that did not fail for ``forget`` seconds starts anew. At most ``addresses`` are known at a
    time; the one that failed longest ago makes room.
    """

    def __init__(
        self,
        *,
        free: int = 5,
        first: float = 1.0,
        longest: float = 60.0,
        forget: float = 900.0,
        addresses: int = 65536,
    ) -> None:
        self._free: Final = free
        self._first: Final = first
        self._longest: Final = longest
        self._forget: Final = max(forget, longest)
        self._addresses: Final = max(addresses, 1)
        self._failures: Final[OrderedDict[str, Failures]] = OrderedDict()
        self._lock: Final = threading.Lock()

    def __len__(self) -> int:
        return len(self._failures)

    def retry_after(self, address: str, now: float) -> float:
        """The seconds this address has to wait; 0 where it may try."""
        key = address_key(address)
        with self._lock:
            failures = self._known(key, now)
            return max(0.0, failures.until - now) if failures is not None else 0.0

    def failed(self, address: str, now: float) -> float:
        """Count a failed login, and return the seconds it costs."""
        key = address_key(address)
        with self._lock:
            failures = self._known(key, now) or Failures()
            self._failures.pop(key, None)
            while len(self._failures) >= self._addresses:
                self._failures.popitem(last=False)
            self._failures[key] = failures  # last in the dict: the one that failed most recently
            failures.count += 1
            failures.latest = now
            over = failures.count - self._free
            wait = min(self._longest, self._first * 2.0 ** min(over - 1, 64)) if over > 0 else 0.0
            failures.until = max(failures.until, now + wait)
            return wait

    def _known(self, key: str, now: float) -> Failures | None:
        failures = self._failures.get(key)
        if failures is not None and now - failures.latest >= self._forget:
            del self._failures[key]
            return None
        return failures


def address_key(address: str) -> str:
    """What counts as one address: an IPv4 address, the /64 of an IPv6 address, or else the text itself."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address[:255]
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(ipaddress.IPv6Network((int(found) >> 64 << 64, 64)))
    return str(found)
