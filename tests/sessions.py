"""A hub with sessions on it and no sockets: what is sent goes straight in, what comes out is collected.

``Site().connect(...)`` gives a ``Wire`` to send bytes (or messages) to one session and to see what it wrote. The loop
and the clock are driven by hand, so nothing waits and nothing races.
"""

from collections.abc import Callable, Mapping

from polywire.hub.access import ANONYMOUS, AccessRules, Identity
from polywire.hub.client import Client
from polywire.hub.hub import Hub
from polywire.hub.outbox import DROP
from polywire.hub.peer import Limits, Login, Refusal
from polywire.registry import built_in
from tests.hub.links import Clock, FakeLink, Loop

PROTOCOLS = [each.name for each in built_in()]


class Wire(FakeLink):
    """Both ends of a connection: the session's ``Peer``, and the test's way to talk to the session."""

    def __init__(self, site: "Site", protocol: str, *, cap: int, local: bool) -> None:
        super().__init__(site.loop, cap=cap, policy=DROP)
        self.site = site
        self.client: Client = site.hub.client(PROTOCOLS.index(protocol), self.outbox, "192.0.2.1:5000", local=local)
        self.protocol = protocol
        self.certificate: Mapping[str, object] | None = None
        self.unread_until = 0
        self.session: object = None
        self.closed = False
        self.too_big = False
        self.is_established = False
        self.held: list[object] | None = None
        self.logins: list[Login] = []

    def send(self, chunks: list[bytes | memoryview]) -> None:
        if not self.closed:
            super().send(chunks)

    def feed(self, *data: bytes | str) -> "Wire":
        """Give the session what its peer sends, one call each, then let the turn end."""
        for each in data:
            if self.closed:
                break
            if self.held is not None:
                self.held.append(each)
                continue
            self.site.hub.flusher.source = self
            self.session.received(each)  # type: ignore[attr-defined]
            self.site.hub.flusher.source = None
            self._hold_if_busy()
        self.site.loop.turn()
        return self

    def _hold_if_busy(self) -> None:
        if self.held is None and self.site.hub.busy(self.client):
            self.held = []
            self.site.hub.when_idle(self.client, self._go_on)

    def _go_on(self) -> None:
        if hasattr(self.session, "go_on"):
            self.session.go_on()
        held, self.held = self.held, None
        self._hold_if_busy()
        if held:
            self.feed(*held)  # type: ignore[arg-type]

    def taken(self) -> bytes:
        """Everything written since the last call."""
        self.site.loop.turn()
        written, self.writes = b"".join(self.writes), []
        return written

    def lose(self) -> None:
        """The connection ends."""
        if not self.closed or self.session is not None:
            self.closed = True
            self.outbox.close()
            session, self.session = self.session, None
            if session is not None:
                session.lost()  # type: ignore[attr-defined]
            self.site.loop.turn()

    def login(self, login: Login, done: Callable[[Identity | Refusal], None]) -> None:
        self.logins.append(login)
        if self.site.slow_logins:
            self.held = []
            self.site.pending_logins.append(lambda: self._finish(login, done))
        else:
            self._finish(login, done)

    def _finish(self, login: Login, done: Callable[[Identity | Refusal], None]) -> None:
        outcome = self.site.who(login)
        if isinstance(outcome, Identity):
            self.client.identity = outcome
            self.client.grants = self.site.rules.grants(outcome, self.protocol)
        done(outcome)
        held, self.held = self.held, None
        if held:
            self.feed(*held)  # type: ignore[arg-type]

    def established(self) -> None:
        self.is_established = True

    def close(self, *, too_big: bool = False) -> None:
        self.outbox.flush()
        self.closed = True
        self.too_big = too_big

    def abort(self) -> None:
        self.closed = True


class Site:
    """A hub, its loop and its clock. ``passwords`` and ``rules`` say who may log in and do what."""

    def __init__(self, *, passwords: dict[str, str] | None = None, rules: AccessRules | None = None) -> None:
        self.loop, self.clock = Loop(), Clock()
        self.hub = Hub(
            self.loop.soon.append,
            self.clock.later,
            self.clock.wall_nanoseconds,
            PROTOCOLS,
            monotonic=self.clock.nanoseconds,
        )
        self.loop.flusher = self.hub.flusher
        self.passwords = passwords
        self.rules = rules or AccessRules()
        self.slow_logins = False
        self.pending_logins: list[Callable[[], None]] = []

    def who(self, login: Login) -> Identity | Refusal:
        if self.passwords is None:
            return ANONYMOUS
        password = login.password.decode() if isinstance(login.password, bytes) else login.password
        if login.user and self.passwords.get(login.user) == password:
            return Identity(login.user, (), "password")
        return Refusal("login failed")

    def connect(
        self,
        protocol: str,
        make: Callable[[Hub, Client, Wire, Limits], object],
        *,
        limits: Limits | None = None,
        cap: int = 1 << 22,
        local: bool = True,
    ) -> Wire:
        """A new connection whose session is what ``make`` returns."""
        wire = Wire(self, protocol, cap=cap, local=local)
        wire.session = make(self.hub, wire.client, wire, limits or Limits())
        self.loop.turn()
        return wire
