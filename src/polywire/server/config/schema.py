"""Every key of the configuration: its type, default, bounds and meaning. ``docs/configuration.md`` is made from here.

The structs are values: frozen, and equal when all their keys are, so that a reload can tell what changed. Read from
them, the keys are also a flat table, which finds the key most similar to an unknown one.
"""

import difflib
import typing
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec
from msgspec import Struct, defstruct, field

from polywire.hub.outbox import DEFAULT_CAP, POLICIES
from polywire.hub.queues import MAX_OCTETS, MAX_SIZE
from polywire.registry import protocols
from polywire.server.address import Address
from polywire.server.config.kinds import (
    GIB,
    KIB,
    MIB,
    Choice,
    Choices,
    Count,
    File,
    Flag,
    Groups,
    Kind,
    Listener,
    Origins,
    Patterns,
    QueueNames,
    Seconds,
    Servers,
    Size,
    Text,
)

LISTENED: Final = tuple(each.name for each in protocols() if each.listeners)
"""The protocols that clients of a hub speak."""
ACTIONS: Final = ("publish", "subscribe", "call", "serve", "signal")
ALGORITHMS: Final = ("HS256", "HS384", "HS512", "RS256", "RS384", "RS512", "ES256", "ES384", "ES512")

LEAST_MESSAGE: Final = 256
LEAST_LOGIN: Final = KIB
"""A login of every protocol fits into this, whatever ``message_size`` is."""

Policy = Literal["drop", "disconnect", "block"]


class Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the file. The docstring of each says what it is about; its fields are its keys."""


def _with(base: type[Section], keys: Iterable[tuple[str, Any, Any]]) -> type[Struct]:
    """A section with further keys: the name of each, its type and its default."""
    options: dict[str, Any] = {"frozen": True, "kw_only": True, "forbid_unknown_fields": True}
    name = base.__name__.lstrip("_")
    return defstruct(name, keys, bases=(base,), module=__name__, namespace={"__doc__": base.__doc__}, **options)


def _listener(about: str, transports: tuple[str, ...], default: str) -> tuple[Any, Address | None]:
    kind = Listener(about, transports)
    return Annotated[Address | None, kind], kind.read(default, Path())


class _Listen(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the hub listens. WebSocket listeners on the same host and port share it; port 0 picks a free one."""

    if TYPE_CHECKING:
        allowed_origins: tuple[str, ...] = ()

    def addresses(self) -> dict[str, Address]:
        """The listeners that are not off, by their keys."""
        found = {name: getattr(self, name) for name in self.__struct_fields__}
        return {name: address for name, address in found.items() if isinstance(address, Address)}


class _ListenerUsers(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Users by listener, for protocols without a login."""

    def users(self) -> dict[str, str]:
        """The listeners that have one, with their user."""
        found = {name: getattr(self, name) for name in self.__struct_fields__}
        return {name: user for name, user in found.items() if user is not None}


if TYPE_CHECKING:
    Listen = _Listen
    ListenerUsers = _ListenerUsers
else:
    Listen = _with(
        _Listen,
        [
            ("http", *_listener("Health, metrics and the journal.", ("http", "https"), "http://127.0.0.1:7100")),
            *(
                (each.key, *_listener(each.about, each.transports, each.default))
                for protocol in protocols()
                for each in protocol.listeners
            ),
            (
                "allowed_origins",
                Annotated[
                    tuple[str, ...],
                    Origins(
                        "Sites whose pages may use the HTTP and WebSocket listeners, besides those the hub serves "
                        "itself, and whose hosts are accepted as names of the hub."
                    ),
                ],
                (),
            ),
        ],
    )
    ListenerUsers = _with(
        _ListenerUsers,
        [
            (
                each.key,
                Annotated[
                    str | None,
                    Text(f"User of all clients on the {protocol.title} listener that present no certificate."),
                ],
                None,
            )
            for protocol in protocols()
            if not protocol.logs_in
            for each in protocol.listeners
        ],
    )


class Tls(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The certificate of all `https://`, `tls://` and `wss://` listeners; needed as soon as there is one."""

    certificate: Annotated[Path, File("The server certificate and its intermediate certificates, PEM.")]
    key: Annotated[Path | None, File("Its private key, PEM. By default it is in the file of the certificate.")] = None
    client_ca: Annotated[
        Path | None,
        File("CA certificates for client certificates, PEM. Without it the hub asks clients for no certificate."),
    ] = None
    require_client_certificate: Annotated[bool, Flag("Whether clients without a valid certificate are refused.")] = (
        False
    )
    minimum_version: Annotated[
        Literal["1.2", "1.3"], Choice("The oldest TLS version that is accepted.", ("1.2", "1.3"))
    ] = "1.2"


class Journal(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The durable log of all messages."""

    enabled: Annotated[bool, Flag("Whether the hub keeps a journal.")] = True
    path: Annotated[
        Path, File("The directory of the journal; created if missing.", "the path of a directory", exists=False)
    ] = Path("journal")
    fsync: Annotated[
        Literal["group", "always", "os"],
        Choice(
            "When data is flushed to disk: once for a group of messages, for each one, or when the operating system "
            "does it (a crash of the machine may then lose acknowledged messages).",
            ("group", "always", "os"),
        ),
    ] = "group"
    on_failure: Annotated[
        Literal["refuse", "continue"],
        Choice(
            "What happens to messages without acknowledgement while the disk is full or fails: they are refused, or "
            "delivered without being recorded. Messages that need an acknowledgement are always refused then.",
            ("refuse", "continue"),
        ),
    ] = "continue"
    on_loss: Annotated[
        Literal["continue", "refuse"],
        Choice(
            "What happens at startup if rows that were on disk are missing, because the disk lost them or a file was "
            "removed: the hub starts without them and logs which, or it refuses to start.",
            ("continue", "refuse"),
        ),
    ] = "continue"
    segment_size: Annotated[
        int, Size("Size at which a file is closed and the next one started.", least=4 * KIB, most=4 * GIB)
    ] = 128 * MIB
    compact: Annotated[
        bool, Flag("Whether closed files are rewritten as Parquet, which is smaller and faster to read.")
    ] = True
    keep_size: Annotated[
        int,
        Size(
            "Size of the journal above which its oldest files are deleted.",
            least=4 * KIB,
            most=1024 * 1024 * GIB,
            never="no limit",
        ),
    ] = 16 * GIB
    keep_time: Annotated[
        float,
        Seconds(
            "Age of messages above which their files are deleted.",
            least=1,
            most=100 * 365 * 86400,
            never="no limit",
        ),
    ] = 0.0
    keep_for_readers: Annotated[
        bool, Flag("Whether rows that a named reader has not read yet are kept despite `keep_size` and `keep_time`.")
    ] = True
    node: Annotated[
        str | None,
        Text("The name of this hub in its journal; by default that of the node (`fabric.node`), or the host name."),
    ] = None


class Limits(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one client, or all clients together, may use. Exceeding a limit affects only the client that does."""

    message_size: Annotated[
        int, Size("Largest message, all of its frames together.", least=LEAST_MESSAGE, most=GIB)
    ] = 16 * MIB
    message_size_before_auth: Annotated[
        int,
        Size(
            "The same before a client has logged in, so also the largest login; at most `message_size`, "
            "but never under 1 KiB.",
            least=LEAST_LOGIN,
            most=GIB,
        ),
    ] = 64 * KIB
    header_size: Annotated[
        int, Size("Largest header of a frame: everything but the body.", least=256, most=16 * MIB)
    ] = 64 * KIB
    handshake_time: Annotated[float, Seconds("How long a client may take to log in.")] = 10.0
    idle_time: Annotated[
        float, Seconds("How long a connection may be silent in both directions.", least=1, never="no limit")
    ] = 0.0
    call_time: Annotated[float, Seconds("Time limit of calls that do not set one.")] = 30.0
    drain_time: Annotated[float, Seconds("How long the hub waits for accepted work when it stops.")] = 10.0
    connections: Annotated[int, Count("Open connections of all protocols.", most=1_000_000)] = 20_000
    subscriptions: Annotated[int, Count("Subscriptions of one connection.", most=10_000_000)] = 10_000
    pattern_cost: Annotated[
        int,
        Count(
            "How many steps the patterns of one connection may add to the search for a message's subscribers.",
            most=10_000_000,
        ),
    ] = 1_000
    pattern_cost_total: Annotated[
        int, Count("How many steps that search may take with all patterns together.", most=10_000_000)
    ] = 20_000
    names_size: Annotated[
        int,
        Size(
            "Memory for the names of what one connection subscribes to, watches and serves; "
            "each takes a few hundred bytes besides its name.",
            least=4 * KIB,
            most=64 * GIB,
        ),
    ] = 16 * MIB
    names_size_total: Annotated[
        int,
        Size(
            "Memory for the names of all connections together, and for those of queues.", least=4 * KIB, most=64 * GIB
        ),
    ] = 128 * MIB
    watchers: Annotated[
        int, Count("Topics whose demand one connection watches, on FMQP.", least=0, most=10_000_000)
    ] = 1_000
    watchers_total: Annotated[int, Count("The same for all connections together.", least=0, most=10_000_000)] = 20_000
    in_flight: Annotated[int, Count("Calls and unacknowledged messages of one connection, each way.", most=65_535)] = (
        1_000
    )
    unfinished: Annotated[int, Count("Partly received messages of one connection.", most=65_535)] = 64
    unfinished_size: Annotated[
        int,
        Size(
            "Memory of all messages of which only a part has arrived, all connections together; at least four times "
            "`message_size` by default.",
            least=4 * KIB,
            most=1024 * GIB,
        ),
    ] = 64 * MIB
    unfinished_size_per_client: Annotated[
        int,
        Size(
            "The same for one connection; at least two and a half times `message_size` by default.",
            least=4 * KIB,
            most=1024 * GIB,
        ),
    ] = 40 * MIB
    backlog_size: Annotated[
        int,
        Size(
            "Data received from connections that use more than their share of the hub and wait for their turn, of all "
            "together. Once it is reached, less is read at once from the hosts that sent the most.",
            least=4 * KIB,
            most=1024 * GIB,
        ),
    ] = 8 * MIB
    wills: Annotated[
        int, Count("Last wills of one FMQP connection (an MQTT connection has one).", least=0, most=1_000_000)
    ] = 1_000
    wills_size: Annotated[
        int, Size("Topics and bodies of the last wills of one FMQP connection, all together.", most=4 * GIB)
    ] = 16 * MIB
    wills_size_total: Annotated[
        int, Size("The last wills of all connections together.", least=4 * KIB, most=64 * GIB)
    ] = 64 * MIB
    outbox: Annotated[
        int, Size("Data waiting to be written to one connection; see `[slow_reader]`.", least=4 * KIB, most=2 * GIB)
    ] = DEFAULT_CAP
    queues: Annotated[int, Count("Queues that have messages or consumers.", most=10_000_000)] = 10_000
    queue_messages: Annotated[int, Count("Messages waiting in one queue.", most=100_000_000)] = 100_000
    queue_octets: Annotated[int, Size("Bodies waiting in one queue.", least=4 * KIB, most=1024 * GIB)] = MAX_OCTETS
    queues_size: Annotated[
        int,
        Size(
            "Memory of all queued messages: bodies, names, headers and 512 bytes each.",
            least=4 * KIB,
            most=1024 * GIB,
        ),
    ] = MAX_SIZE
    retained_messages: Annotated[
        int, Count("Retained (cached) messages, all channels together.", least=0, most=100_000_000)
    ] = 100_000
    retained_octets: Annotated[int, Size("Their bytes in total.", least=4 * KIB, most=1024 * GIB)] = 128 * MIB
    sessions: Annotated[
        int,
        Count("Persistent MQTT sessions, of connected clients and of clients that are away.", least=0, most=10_000_000),
    ] = 20_000
    sessions_per_user: Annotated[
        int, Count("Persistent MQTT sessions of one user; without `[auth]` all clients are one user.", most=10_000_000)
    ] = 10_000
    sessions_size: Annotated[
        int, Size("Messages stored for all MQTT clients that are offline.", least=4 * KIB, most=1024 * GIB)
    ] = 128 * MIB
    sessions_size_per_user: Annotated[
        int, Size("Messages stored for the offline clients of one user.", least=4 * KIB, most=1024 * GIB)
    ] = 64 * MIB
    session_age: Annotated[
        float,
        Seconds(
            "How long an MQTT session is kept while its client is offline.",
            least=1,
            most=100 * 365 * 86400,
            never="no limit",
        ),
    ] = 7 * 86400.0
    offline_messages: Annotated[
        int, Count("Messages stored for one MQTT client that is offline.", least=0, most=1_000_000)
    ] = 1_000


class Jwt(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Authentication with signed tokens (JWT). Set exactly one of `key` and `jwks`."""

    algorithms: Annotated[tuple[str, ...], Choices("Accepted signature algorithms.", ALGORITHMS)]
    key: Annotated[Path | None, File("File with the secret (HS) or the public key in PEM (RS, ES).")] = None
    jwks: Annotated[Path | None, File("File with a set of keys in JSON (JWKS).")] = None
    audience: Annotated[str | None, Text("Required audience (`aud`).")] = None
    issuer: Annotated[str | None, Text("Required issuer (`iss`).")] = None
    user_claim: Annotated[str, Text("The claim that contains the user's name.")] = "sub"
    groups_claim: Annotated[str, Text("The claim that contains the user's groups.")] = "groups"
    leeway: Annotated[float, Seconds("Allowed clock difference.", least=0.0, most=3600.0)] = 0.0


class Throttle(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Throttling of failed logins: how long an address has to wait before it may try again."""

    failures: Annotated[int, Count("Failed logins without a wait.", least=0, most=1_000_000)] = 5
    first_wait: Annotated[float, Seconds("Wait after the next failed login; it doubles with each further one.")] = 1.0
    longest_wait: Annotated[float, Seconds("Longest wait.")] = 60.0
    forget_time: Annotated[float, Seconds("Time without a failure after which the count of an address is reset.")] = (
        900.0
    )


class Auth(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Authentication. Without this section no login is needed, and the hub listens on loopback only."""

    users: Annotated[Path | None, File("Users with their hashed passwords; see `polywire user add`.")] = None
    groups: Annotated[
        dict[str, tuple[str, ...]], Groups("Groups of users, in addition to those in the file of users.")
    ] = field(default_factory=dict)
    certificate: Annotated[
        bool, Flag("Whether the name in a client's certificate is its user; needs `tls.client_ca`.")
    ] = False
    certificate_name: Annotated[
        Literal["cn", "dns", "email", "uri"],
        Choice(
            "Where to find that name: the subject's common name, or a subject alternative name of this kind.",
            ("cn", "dns", "email", "uri"),
        ),
    ] = "cn"
    anonymous: Annotated[bool, Flag("Whether clients may connect without logging in.")] = False
    session_time: Annotated[
        float,
        Seconds(
            "How long a connection may last after its login, anonymous ones included; a token may end it earlier.",
            least=1,
            most=100 * 365 * 86400,
            never="no limit",
        ),
    ] = 0.0
    jwt: Jwt | None = None
    listeners: ListenerUsers = ListenerUsers()
    throttle: Throttle = Throttle()


class AccessRule(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Access rules, one table each. As soon as there is one, everything that no rule allows is refused.

    A rule with neither `user` nor `group` is for everybody. A rule that denies takes precedence over rules that allow.
    """

    user: Annotated[str | None, Text("The user this rule is for.")] = None
    group: Annotated[str | None, Text("Or the group this rule is for.")] = None
    protocol: Annotated[str | None, Choice("The protocol this rule is for; by default all.", LISTENED)] = None
    actions: Annotated[tuple[str, ...], Choices("The actions this rule is for.", ACTIONS)]
    channels: Annotated[
        tuple[str, ...],
        Patterns(
            "The channels, or services: `*` is one level, `**` at the end any number, `{user}` the user's own name."
        ),
    ]
    effect: Annotated[Literal["allow", "deny"], Choice("Whether that is allowed or denied.", ("allow", "deny"))] = (
        "allow"
    )


class QueuePolicy(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Dead-letter policies for messages that are delivered repeatedly, one table each.

    The first policy that matches a queue's name is used. Without one, a message is delivered until it is acknowledged.
    See [dead letters](how-to/dead-letters.md).
    """

    names: Annotated[
        tuple[str, ...],
        QueueNames("The queues this policy is for: `*` is one level of a name, `**` at the end any number."),
    ]
    max_deliveries: Annotated[
        int,
        Count(
            "How often a message is delivered before it is moved to `dead_letter`; 0 for no limit.",
            least=0,
            most=1_000_000,
        ),
    ] = 0
    dead_letter: Annotated[str | None, Text("The queue that the message is moved to.", "the name of a queue")] = None


class SlowReader(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What happens when a connection's outbox is full because its client does not read.

    `drop` discards messages and counts them, `disconnect` closes the connection, `block` stops reading from those who
    cause more. What that means for queues and replies is described [below](#slow-readers).
    """

    topics: Annotated[Policy, Choice("For messages of topics.", POLICIES)] = "drop"
    queues: Annotated[
        Literal["disconnect", "block"],
        Choice("For messages of queues.", ("disconnect", "block"), ("drop", "a queue loses no message")),
    ] = "block"
    replies: Annotated[Policy, Choice("For replies and acknowledgements.", POLICIES)] = "block"


class Sabc(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the hub sends sABC."""

    frame_size: Annotated[
        int,
        Size(
            "Largest frame the hub sends; longer messages are split.",
            least=KIB,
            most=GIB,
            never="one frame for each message",
        ),
    ] = 64 * KIB


class Fabric(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How several hubs act as one."""

    kind: Annotated[
        Literal["none", "nats"],
        Choice("One hub alone, or one node of a cluster on NATS.", ("none", "nats")),
    ] = "none"
    cluster: Annotated[
        str, Text("The name of the cluster, the same for all of its nodes.", "letters, digits, - and _")
    ] = "polywire"
    node: Annotated[
        str | None,
        Text(
            "The name of this node, which no other has and which stays the same; by default that of the journal, or "
            "the host name.",
            "letters, digits, -, _ and single dots",
        ),
    ] = None
    url: Annotated[
        tuple[str, ...],
        Servers(
            "The servers of NATS, with JetStream. One is enough to find the others. A user and password, or a token, "
            "may be in it; a file of credentials is safer.",
            ("nats", "tls"),
            "nats://host:4222",
        ),
    ] = ()
    credentials: Annotated[Path | None, File("NATS credentials of this node (`.creds`).")] = None
    ca: Annotated[
        Path | None, File("The CAs that the servers' certificates must come from, PEM; by default the system's.")
    ] = None
    certificate: Annotated[Path | None, File("The certificate of this node towards NATS, PEM.")] = None
    key: Annotated[Path | None, File("Its private key, PEM. By default it is in the file of the certificate.")] = None
    monitor: Annotated[
        tuple[str, ...],
        Servers(
            "Monitoring ports of the servers. With them the hub checks at startup that each syncs what it stores "
            "(`sync_interval: always`), and warns otherwise.",
            ("http", "https"),
            "http://host:8222",
        ),
    ] = ()
    replicas: Annotated[
        int,
        Count(
            "On how many servers of NATS the messages of queues are stored. With 1 they are in the journal of the node "
            "that owns the queue, and unavailable while that is down. It must be the same for all nodes.",
            most=5,
        ),
    ] = 1
    on_lost: Annotated[
        Literal["serve", "refuse"],
        Choice(
            "What happens to messages that another node must acknowledge while it can't be reached: they wait until it "
            "can, or they are refused.",
            ("serve", "refuse"),
        ),
    ] = "serve"
    lease: Annotated[
        float,
        Seconds(
            "How long a node that is not heard of remains part of the cluster, and the owner of its queues. It must be "
            "the same for all nodes.",
            least=1,
            most=60,
        ),
    ] = 3.0
    window: Annotated[
        int,
        Size("Data on its way to one other node, or waiting to be handled there.", least=4 * KIB, most=GIB),
    ] = 4 * MIB
    buffer: Annotated[
        int,
        Size("Data waiting for one other node beyond that; then it is a slow reader.", least=4 * KIB, most=16 * GIB),
    ] = 4 * MIB


class Log(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Logging to standard error."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Choice("Lowest level that is logged.", ("debug", "info", "warning", "error")),
    ] = "info"
    format: Annotated[Literal["text", "json"], Choice("Plain text, or one JSON object per line.", ("text", "json"))] = (
        "text"
    )


class Config(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole configuration. ``tls`` and ``auth`` are None where their sections are not there."""

    listen: Listen = Listen()
    tls: Tls | None = None
    journal: Journal = Journal()
    limits: Limits = Limits()
    auth: Auth | None = None
    access: tuple[AccessRule, ...] = ()
    queues: tuple[QueuePolicy, ...] = ()
    slow_reader: SlowReader = SlowReader()
    sabc: Sabc = Sabc()
    fabric: Fabric = Fabric()
    log: Log = Log()


@dataclass(frozen=True, slots=True)
class Key:
    """A key with a value: its name, what it may be, and its default unless it is ``required``."""

    name: str
    kind: Kind
    default: Any
    required: bool


@dataclass(frozen=True, slots=True)
class Table:
    """A section: its dotted path, its struct, its keys and the sections below it, by name.

    ``optional``: the value is None if the section is missing. ``many``: it is an array of tables.
    """

    path: tuple[str, ...]
    struct: type[Section]
    keys: dict[str, Key]
    tables: dict[str, "Table"]
    optional: bool = False
    many: bool = False

    def walk(self) -> Iterator["Table"]:
        """This table and all below it."""
        yield self
        for table in self.tables.values():
            yield from table.walk()


@cache
def root() -> Table:
    """The table of all tables."""
    return _table((), Config, optional=False, many=False)


def nearest(path: tuple[str, ...], table: Table) -> str:
    """The dotted name of the key or section that is most similar to ``path``, which is unknown in ``table``."""
    name = path[-1]
    here = [*table.keys, *table.tables]
    everywhere: dict[str, str] = {}  # first of a name wins, so sections in the order of the documentation
    for other in root().walk():
        for key in (*other.tables, *other.keys):
            everywhere.setdefault(key, ".".join((*other.path, key)))
    close = difflib.get_close_matches(name, here, n=1, cutoff=0.7)
    if not close and name in everywhere:
        return everywhere[name]
    if not close:
        far = difflib.get_close_matches(name, everywhere, n=1, cutoff=0.8)
        if far:
            return everywhere[far[0]]
        close = difflib.get_close_matches(name, here, n=1, cutoff=0.0)
    return ".".join((*table.path, close[0]))


def _table(path: tuple[str, ...], struct: type[Section], *, optional: bool, many: bool) -> Table:
    hints = typing.get_type_hints(struct, include_extras=True)
    keys: dict[str, Key] = {}
    tables: dict[str, Table] = {}
    for found in msgspec.structs.fields(struct):
        hint = hints[found.name]
        below = (*path, found.name)
        if typing.get_origin(hint) is tuple:  # an array of tables
            tables[found.name] = _table(below, typing.get_args(hint)[0], optional=False, many=True)
        elif typing.get_origin(hint) is typing.Annotated:
            _, kind = typing.get_args(hint)
            required = found.required
            default = None if required else found.default
            if found.default_factory is not msgspec.NODEFAULT:
                default = found.default_factory()
            keys[found.name] = Key(found.name, kind, default, required)
        else:
            inner = [arg for arg in typing.get_args(hint) if arg is not type(None)] or [hint]
            tables[found.name] = _table(below, inner[0], optional=bool(typing.get_args(hint)), many=False)
    return Table(path, struct, keys, tables, optional, many)
