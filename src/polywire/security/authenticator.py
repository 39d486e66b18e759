"""One door for every protocol: credentials in, an identity out.

A session collects what its client presented and the server calls ``authenticate``, in a worker thread where
``needs_thread`` says so, because checking a password takes tens of milliseconds by design. Making an ``Authenticator``
reads nothing and computes nothing, so a reload makes a new one from the changed files and puts it in the old one's
place; the ``Throttle`` is handed on.
"""

import math
from typing import Final

from polywire.errors import PolywireError
from polywire.hub.access import ANONYMOUS, Identity
from polywire.security.certificates import CertificateError, CertificateNames
from polywire.security.credentials import Credentials
from polywire.security.throttle import Throttle
from polywire.security.tokens import TokenError, Tokens
from polywire.security.users import NO_PASSWORD, Users


class LoginError(PolywireError):
    """A login that failed. Its text is the same whatever the cause, so it may be shown to the client.

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
    """Finds out who a client is.

    With neither ``users`` nor ``tokens`` nor ``certificates`` nothing can be proven, and everybody is anonymous,
    whatever they present. Otherwise what is presented must be right; a client that presents nothing is who its
    certificate, then its listener, says, and else anonymous, if ``anonymous`` allows that.
    """

    def __init__(
        self,
        *,
        users: Users | None = None,
        tokens: Tokens | None = None,
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
            raise LoginError("a token was presented, and none are accepted here")
        try:
            return self.tokens.verify(token)
        except TokenError as error:
            raise LoginError(error.reason) from error

    def _by_password(self, credentials: Credentials) -> Identity:
        user = credentials.user
        if credentials.password is None:
            raise LoginError("a user was named without a password", user=user)
        if self.users is None:
            raise LoginError("a password was presented, and none are accepted here", user=user)
        identity = self.users.verify(user, credentials.password)
        if identity is None:
            raise LoginError("unknown user" if user not in self.users.by_name else "wrong password", user=user)
        return identity

    def _unclaimed(self, credentials: Credentials) -> Identity:
        """Who somebody is who claims to be nobody in particular."""
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
