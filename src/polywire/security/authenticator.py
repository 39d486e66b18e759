"""Authentication for every protocol: credentials in, an identity out.

A session collects what its client presented and the server calls ``authenticate``, in a worker thread where
``needs_thread`` says so, because checking a password takes tens of milliseconds by design. Making an ``Authenticator``
reads nothing and computes nothing, so a reload creates a new one from the changed files and replaces the old one;
the ``Throttle``, which makes addresses wait after failed logins, is kept.
"""

import ipaddress
import math
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from polywire.errors import PolywireError
from polywire.security.credentials import (
    ANONYMOUS,
    CertificateError,
    CertificateNames,
    Credentials,
    Identity,
    TokenError,
)
from polywire.security.users import NO_PASSWORD, Users

if TYPE_CHECKING:
    from polywire.security.tokens import Tokens


@dataclass(slots=True)
class Failures:
    """The failures of one address: how many, when the latest was, and until when it waits."""

    count: int = 0
    latest: float = 0.0
    until: float = 0.0


class Throttle:
    """Failed logins by address, bounded in number; safe to use from several threads.

    ``free`` failures cost nothing, the next one ``first`` seconds, each one after that twice as many, at most
    ``longest``. An address without failures for ``forget`` seconds is reset. At most ``addresses`` are remembered;
    the one whose last failure is oldest is forgotten first.
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


class LoginError(PolywireError):
    """A failed login. Its text is the same for every cause, so it may be shown to the client.

    ``cause`` and ``user`` are for the log alone.
    """

    def __init__(self, cause: str, *, user: str = "") -> None:
        super().__init__("login refused")
        self.cause = cause
        self.user = user


class Throttled(PolywireError):  # noqa: N818 - what happened to the client; LoginError is the error
    """A login that was not even looked at: its address failed too often. ``retry_after`` is in seconds."""

    def __init__(self, retry_after: float) -> None:
        super().__init__(f"too many failed logins, try again in {math.ceil(retry_after)} s")
        self.retry_after = retry_after


class Authenticator:
    """Authenticates clients.

    With neither ``users`` nor ``tokens`` nor ``certificates`` every client is anonymous, whatever it presents.
    Otherwise credentials must be valid; a client without credentials is identified by its certificate, then by its
    listener, and else is anonymous, if ``anonymous`` allows that.
    """

    def __init__(
        self,
        *,
        users: Users | None = None,
        tokens: "Tokens | None" = None,
        certificates: CertificateNames | None = None,
        anonymous: bool = False,
        throttle: Throttle | None = None,
    ) -> None:
        self.users: Final = users
        self.tokens: Final = tokens
        self.certificates: Final = certificates
        self.throttle: Final = throttle if throttle is not None else Throttle()
        self.open: Final = users is None and tokens is None and certificates is None
        self.anonymous: Final = anonymous or self.open

    def needs_thread(self, credentials: Credentials) -> bool:
        """Whether a password has to be checked, which takes long enough to belong in a worker thread."""
        if self.users is None or credentials.password is None or not credentials.user:
            return False
        return credentials.presented_token() is None

    def retry_after(self, address: str, now: float) -> float:
        """The seconds this address has to wait before a login is looked at; worth asking before taking a thread."""
        return self.throttle.retry_after(address, now)

    def authenticate(self, credentials: Credentials, address: str, now: float) -> Identity:
        """Who this is, or a ``LoginError``, or ``Throttled``. ``now`` is the time of a clock that only runs forward."""
        token = credentials.presented_token()
        if self.open or (not credentials.user and token is None):
            return self._unclaimed(credentials)
        wait = self.throttle.retry_after(address, now)
        if wait > 0:
            raise Throttled(wait)
        try:
            return self._by_token(token) if token is not None else self._by_password(credentials)
        except LoginError:
            self.throttle.failed(address, now)
            raise

    def renewed(self, identity: Identity) -> Identity | None:
        """A client that logged in earlier, with the groups it has today; None where it could not log in any more.

        A password that has changed does not end logins made with the old one.
        """
        if identity.how == "password":
            user = self.users.by_name.get(identity.name) if self.users is not None else None
            if user is None or user.hash == NO_PASSWORD:
                return None
            return Identity(identity.name, user.groups, identity.how, identity.expires)
        if identity.how == "token":
            return identity if self.tokens is not None else None
        if identity.how == "certificate" and self.certificates is None:
            return None
        if identity.how in {"certificate", "listener"}:
            known = self._known(identity.name, identity.how)
            return Identity(known.name, known.groups, known.how, identity.expires)
        return identity if self.anonymous else None

    def _by_token(self, token: str | bytes) -> Identity:
        if self.tokens is None:
            raise LoginError("a token was presented, but tokens are not accepted here")
        try:
            return self.tokens.verify(token)
        except TokenError as error:
            raise LoginError(error.reason) from error

    def _by_password(self, credentials: Credentials) -> Identity:
        user = credentials.user
        if credentials.password is None:
            raise LoginError("a user was named without a password", user=user)
        if self.users is None:
            raise LoginError("a password was presented, but passwords are not accepted here", user=user)
        identity = self.users.verify(user, credentials.password)
        if identity is None:
            raise LoginError("unknown user" if user not in self.users.by_name else "wrong password", user=user)
        return identity

    def _unclaimed(self, credentials: Credentials) -> Identity:
        """The identity of a client without credentials."""
        if self.certificates is not None and credentials.certificate:
            try:
                return self._known(self.certificates.name(credentials.certificate), "certificate")
            except CertificateError as error:
                raise LoginError(error.reason) from error
        if credentials.listener:
            return self._known(credentials.listener, "listener")
        if not self.anonymous:
            raise LoginError("no credentials were presented")
        return ANONYMOUS

    def _known(self, name: str, how: str) -> Identity:
        return Identity(name, self.users.groups(name) if self.users is not None else (), how)
