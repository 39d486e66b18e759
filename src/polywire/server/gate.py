"""What all connections share: the hub, the limits and authentication.

A reload changes it in place, so open connections continue under the new rules.
"""

import asyncio
import ipaddress
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol

from polywire.hub.access import ANONYMOUS, NOTHING, AccessRules, Grants, Identity
from polywire.hub.client import Client
from polywire.hub.hub import Hub
from polywire.hub.outbox import POLICIES
from polywire.hub.peer import Limits, Login, Refusal
from polywire.hub.work import DONE, MORE, PROMPT, Job, Work
from polywire.protocols.mqtt.kept import SHARED, MqttSessions, SessionState
from polywire.security.authenticator import Authenticator, LoginError, Throttled
from polywire.security.credentials import Credentials
from polywire.server.address import WILDCARDS, Address, refusal
from polywire.server.config import Config
from polywire.server.config.admission import Admission
from polywire.server.config.loader import queue_policies
from polywire.server.logs import Refusals, Seldom, SeldomEach

if TYPE_CHECKING:
    from polywire.server.journal import Journaling

LOGIN_THREADS = 2
"""Passwords checked at once: each takes 64 MiB and a core, so this also limits how fast passwords can be guessed."""

LOGINS_WAITING = 1000
"""Logins that may wait for a thread; further ones are refused."""

READ_SIZE = 256 * 1024
LITTLE = 1024
"""The most that is read from a connection at once, and from one whose host is crowded."""

MQTT = "mqtt"
RENEWAL = "reload"
"""The owner of the work that a reload makes."""

NAME_SHOWN = 64
"""How many characters of a claimed user name are logged."""

log = logging.getLogger("polywire.server")


class Connection(Protocol):
    """A connection that came in, as far as all of them are treated alike."""

    client: Client | None

    def busy(self) -> bool:
        """Whether something that was accepted is not written or answered yet."""

    def is_silent_since(self, time: float, /) -> bool:
        """Whether nothing has been received since then."""

    def idle(self) -> None:
        """End it, as it has been silent for too long."""

    def revoke(self) -> None:
        """End it, as its login does not hold any more."""

    def drain(self) -> None:
        """Accept no more messages."""

    def goodbye(self) -> None:
        """End it, as the hub shuts down."""

    def close(self) -> None:
        """Close it."""

    def abort(self) -> None:
        """Close it at once, whatever is left to write."""


class ReadsWhole(Protocol):
    """A connection from which everything is read at once."""

    def read_little(self) -> None:
        """Read little at once from now on."""


class Host:
    """An address that connections come from.

    ``size`` is how many bytes of theirs wait to be handled, ``used`` how many nanoseconds they have taken since
    ``window``. ``whole`` are those from which everything is read at once.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.connections = 0
        self.size = 0
        self.used = 0
        self.window = 0.0
        self.whole: set[ReadsWhole] = set()


class Backlog:
    """How much of what connections have sent is not handled yet, by the hosts they come from.

    A connection whose input waits is not read, but each may have sent what is read at once, so many of them hold a lot.
    Once all hosts hold ``most`` bytes, those with more than an equal share are crowded: little is read at once from
    their connections, and what fills even that waits for its turn. Small messages pass.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.most = 0
        self.size = 0
        self._warning = Seldom(log, loop.time)
        self._hosts: dict[str, Host] = {}
        self._holding = 0  # hosts with a size

    def enter(self, name: str) -> Host:
        """A connection from this host is there."""
        host = self._hosts.get(name)
        if host is None:
            host = self._hosts[name] = Host(name)
        host.connections += 1
        return host

    def leave(self, host: Host) -> None:
        """A connection has gone; nothing it sent is counted any more."""
        host.connections -= 1
        if host.connections == 0:
            self._hosts.pop(host.name, None)

    def count(self, host: Host, size: int) -> None:
        """So many bytes more of a connection from this host wait to be handled, or fewer."""
        self.size += size
        self._holding += (host.size + size > 0) - (host.size > 0)
        host.size += size
        if size > 0 and self.is_crowded(host):
            # Each of them has been read since it was last here, so they are no more than there were reads.
            while host.whole:
                host.whole.pop().read_little()
            words = "%d bytes from %d connections of %s wait to be handled: less is read from them at once"
            self._warning.warn(words, host.size, host.connections, host.name)

    def is_crowded(self, host: Host) -> bool:
        """Whether too much waits, and this host has sent more than its part of it."""
        return self.size > self.most and host.size * self._holding >= self.size


class Gate:
    """Admits connections. ``connections`` are those admitted, ``handshaking`` is how many are in their handshake."""

    def __init__(self, hub: Hub, loop: asyncio.AbstractEventLoop) -> None:
        self.hub = hub
        self.loop = loop
        self.connections: set[Connection] = set()
        self.turns = Work(loop.call_soon, hub.monotonic, eager=False, light=hub.work.light)
        """What connections have sent that use more than their share of the loop."""
        self.emptied = asyncio.Event()
        self.journaling: Journaling | None = None
        self.refused = 0
        self.backlog = Backlog(loop)
        # Connections are read one after the other, and what was read is copied at once.
        self.buffer = memoryview(bytearray(READ_SIZE))
        self.little_buffer = self.buffer[:LITTLE]
        self.unfinished = 0
        """Bytes of messages of which only a part has arrived, as far as connections have reported them."""
        self.handshaking = 0
        self.most_connections = 1 << 30
        self.open = True
        self.rules = AccessRules()
        self._threads = ThreadPoolExecutor(LOGIN_THREADS, "polywire-login")
        self._waiting = 0
        self._listener_users: dict[str, str] = {}
        self._renewal: Renewal | None = None
        self._on_renewed: list[Callable[[], None]] = []
        hub.on_regranted = self._check_renewed
        self._full = Seldom(log, loop.time)
        self._unfinished = Seldom(log, loop.time)
        self._failed = SeldomEach(log, loop.time)
        refusals = Refusals(log, loop.time)
        hub.on_refused = refusals.refused
        hub.on_oversized = refusals.oversized
        self.apply(Config(), Admission(None, AccessRules(), {}))

    def apply(self, config: Config, admission: Admission) -> None:
        """Take over a configuration. Clients that are connected keep their connection and get their new rights."""
        limits = config.limits
        self.max_connections = limits.connections
        self.outbox_cap = limits.outbox
        slow = config.slow_reader
        self.policies = (POLICIES.index(slow.topics), POLICIES.index(slow.replies), POLICIES.index(slow.queues))
        self.handshake_time = limits.handshake_time
        self.idle_time = limits.idle_time
        self.max_unfinished = limits.unfinished_size
        self.max_unfinished_per_client = limits.unfinished_size_per_client
        self.backlog.most = limits.backlog_size
        self.allowed_origins = config.listen.allowed_origins
        self.limits = Limits(
            message_size=limits.message_size,
            message_size_before_auth=limits.message_size_before_auth,
            header_size=limits.header_size,
            call_time=limits.call_time,
            subscriptions=limits.subscriptions,
            in_flight=limits.in_flight,
            unfinished=limits.unfinished,
            wills=limits.wills,
            wills_size=limits.wills_size,
            sessions=limits.sessions,
            sessions_per_user=limits.sessions_per_user,
            sessions_size=limits.sessions_size,
            sessions_size_per_user=limits.sessions_size_per_user,
            session_age=limits.session_age,
            offline_messages=limits.offline_messages,
            sabc_frame_size=config.sabc.frame_size,
        )
        self.hub.queue_messages = limits.queue_messages
        self.hub.queue_octets = limits.queue_octets
        self.hub.most_queues = limits.queues
        self.hub.queue_totals.most = limits.queues_size
        self.hub.set_policies(queue_policies(config))
        self.hub.most_reach = limits.pattern_cost
        self.hub.most_reach_together = limits.pattern_cost_total
        self.hub.most_watchers = limits.watchers
        self.hub.most_watchers_together = limits.watchers_total
        self.hub.most_names_size = limits.names_size
        self.hub.most_names_size_together = limits.names_size_total
        self.hub.most_wills_size_together = limits.wills_size_total
        self.hub.retained.limit = limits.retained_messages
        self.hub.retained.most_octets = limits.retained_octets
        self._admission = admission
        self._listener_users = {} if config.auth is None else config.auth.listeners.users()
        self.rules = admission.rules
        self.hub.forget_views()
        if self._renewal is not None:
            self._renewal.stopped = True
        self._renewal = Renewal(self)
        self.hub.work.start(RENEWAL, self._renewal, PROMPT)

    def when_renewed(self, call: Callable[[], None]) -> None:
        """Call this once the current rights apply to every client: now, or when the steps of the reload are done."""
        self._on_renewed.append(call)
        self._check_renewed()

    def renewed(self, renewal: "Renewal") -> None:
        """A reload has handled every client."""
        if self._renewal is renewal:
            self._renewal = None
            self._check_renewed()

    def _check_renewed(self) -> None:
        if self._renewal is None and self.hub.regranting == 0:
            calls, self._on_renewed = self._on_renewed, []
            for call in calls:
                call()

    @property
    def has_logins(self) -> bool:
        """Whether clients have to say who they are."""
        return self._admission.authenticator is not None

    def origin_problem(self, host: str, origin: str | None, address: Address) -> str | None:
        """Why a request to the listener at ``address`` may not name this ``Host`` and ``Origin``, or None if it may."""
        any_name = self.has_logins and address.host in WILDCARDS
        return refusal(host, origin, address, self.allowed_origins, any_name=any_name)

    def enter(self, endpoint: Connection) -> bool:
        """Let a connection in, unless there are too many or the hub is going down."""
        if not self._has_room():
            return False
        self.connections.add(endpoint)
        self.emptied.clear()
        return True

    def knock(self) -> "Knock | None":
        """Let a connection begin a handshake of TLS or WebSocket, which counts until it has come in or gone."""
        return Knock(self) if self._has_room() else None

    def hold(self, endpoint: Connection, before: int, now: int) -> str:
        """A connection holds ``now`` bytes of unfinished messages, and held ``before``. Why it may not, or nothing."""
        self.unfinished += now - before
        if now <= before:
            return ""
        if now > self.max_unfinished_per_client:
            reason = f"your unfinished messages have more than {self.max_unfinished_per_client} bytes"
        elif self.unfinished > self.max_unfinished:
            reason = "the hub's limit for unfinished messages is reached; try again later"
        else:
            return ""
        words = "%s is disconnected: it holds %d bytes of unfinished messages, all connections together %d"
        self._unfinished.warn(words, endpoint.client, now, self.unfinished)
        return reason

    def leave(self, endpoint: Connection) -> None:
        """A connection has ended."""
        self.connections.discard(endpoint)
        if not self.connections:
            self.emptied.set()

    def authenticate(
        self,
        login: Login,
        certificate: Mapping[str, object] | None,
        listener: str,
        address: str,
        done: Callable[[Identity | Refusal], None],
    ) -> None:
        """Authenticate a client; ``done`` is called in the loop, immediately if no password has to be hashed."""
        admission = self._admission
        authenticator = admission.authenticator
        if authenticator is None:
            done(ANONYMOUS)
            return
        credentials = Credentials(
            login.user, login.password, login.token, certificate, self._listener_users.get(listener, "")
        )
        if not authenticator.needs_thread(credentials):
            # A client without credentials guesses no password, so it is not throttled.
            done(self._outcome(admission, authenticator, credentials, address))
            return
        wait = authenticator.retry_after(_host(address), self.loop.time())
        if wait > 0:
            done(self._throttled(address, wait))
        elif self._waiting >= LOGINS_WAITING:
            done(Refusal("too many logins at once", 1.0))
        else:
            self._waiting += 1
            future = self._threads.submit(self._outcome, admission, authenticator, credentials, address)
            future.add_done_callback(lambda ended: self._back(ended, done))

    def renew(self, client: Client) -> bool:
        """Give a connected client the groups and rights it has today. False where it could not log in any more."""
        identity = self._renewed(client.identity)
        if identity is None:
            self.hub.regrant(client, NOTHING)
            return False
        client.identity = identity
        self.hub.regrant(client, self.rules.grants(identity, client.counters.protocol))
        return True

    def renew_stored(self) -> None:
        """Let the MQTT sessions that the journal has brought back collect what their users may subscribe to today."""
        sessions = self.hub.shared.get(SHARED)
        if isinstance(sessions, MqttSessions):
            self.hub.work.start(RENEWAL, sessions.regranting(self.stored_grants), PROMPT)
            self.hub.work.finish()

    def stored_grants(self, state: SessionState) -> Grants:
        """What the user of a stored MQTT session may do today: nothing where it could not log in any more."""
        identity = state.identity
        if not identity.how:  # an older journal does not say it
            known = self._admission.authenticator is not None and identity.name
            identity = Identity(identity.name, identity.groups, "password" if known else "anonymous")
        renewed = self._renewed(identity)
        return NOTHING if renewed is None else self.rules.grants(renewed, MQTT)

    def _renewed(self, identity: Identity) -> Identity | None:
        authenticator = self._admission.authenticator
        if authenticator is None:
            return identity
        renewed = authenticator.renewed(identity)
        if renewed is None or (renewed.how == "listener" and renewed.name not in self._listener_users.values()):
            return None
        return self._admission.with_groups(renewed)

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    @staticmethod
    def is_loopback(host: object) -> bool:
        """Whether a peer's address is this machine."""
        try:
            return ipaddress.ip_address(str(host).partition("%")[0]).is_loopback
        except ValueError:
            return False

    def _has_room(self) -> bool:
        allowed = min(self.max_connections, self.most_connections)
        taken = len(self.connections) + self.handshaking
        if self.open and taken < allowed:
            return True
        self.refused += 1
        if self.open:
            self._full.warn("a connection was refused: the limit of %d is reached", taken)
        return False

    def _back(self, ended: "Future[Identity | Refusal]", done: Callable[[Identity | Refusal], None]) -> None:
        """A thread is done: continue in the loop."""

        def deliver() -> None:
            self._waiting -= 1
            done(Refusal("the hub is shutting down") if ended.cancelled() else ended.result())

        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(deliver)

    def _outcome(
        self, admission: Admission, authenticator: Authenticator, credentials: Credentials, address: str
    ) -> Identity | Refusal:
        try:
            identity = authenticator.authenticate(credentials, _host(address), self.loop.time())
            return admission.admitted(identity, self.hub.clock() / 1e9)
        except Throttled as error:
            return self._throttled(address, error.retry_after)
        except LoginError as error:
            user = error.user[:NAME_SHOWN]
            words = "login of %r from %s failed: %s"
            fields = {"user": user, "address": address, "action": "login", "reason": str(error.cause)}
            self._failed.warn(_host(address), words, user, address, error.cause, **fields)
            return Refusal("login failed")

    def _throttled(self, address: str, wait: float) -> Refusal:
        reason = "too many failed logins from this address"
        fields = {"address": address, "action": "login", "reason": reason}
        self._failed.warn(_host(address), "login from %s refused: %s", address, reason, **fields)
        return Refusal(reason, wait)


class Renewal(Job):
    """What a reload changes for those who are there: clients with all they have, and stored MQTT sessions.

    One at a time; who could not log in any more gets nothing from then on, and is disconnected.
    """

    def __init__(self, gate: Gate) -> None:
        self.stopped = False  # another one does it
        self._gate = gate
        self._endpoints = {each.client: each for each in gate.connections}
        self._clients = list(gate.hub.clients.values())
        sessions = gate.hub.shared.get(SHARED)
        self._stored = sessions.regranting(gate.stored_grants) if isinstance(sessions, MqttSessions) else None

    def step(self) -> int:
        """Look at one of them."""
        if self.stopped:
            return DONE
        if self._clients:
            client = self._clients.pop()
            if not client.leaving and not self._gate.renew(client):
                endpoint = self._endpoints.get(client)
                if endpoint is not None:
                    endpoint.revoke()
            return MORE
        if self._stored is not None and self._stored.step() != DONE:
            return MORE
        self._gate.hub.forget_views()
        self._gate.renewed(self)
        return DONE


class Counted(Protocol):
    """Counts the connections that are in their handshake."""

    handshaking: int


class Knock:
    """A connection in its handshake: it counts as one that was admitted."""

    def __init__(self, gate: Counted) -> None:
        self._gate = gate
        self._waits = True
        gate.handshaking += 1

    def done(self) -> None:
        """It comes in now, or has gone."""
        if self._waits:
            self._waits = False
            self._gate.handshaking -= 1


def _host(address: str) -> str:
    """What failed logins are counted by: the address without its port."""
    return address.rpartition(":")[0] or address
