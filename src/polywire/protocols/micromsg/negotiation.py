"""The handshake's contents: which version and which extensions two sides agree on.

Everything here is a function of the handshake messages and of this side's ``Terms``. The client makes its ``offer``;
the server answers it with a ``reply``; the client ends with its ``final`` message; from these the server takes its
``Agreement`` with ``agree``, the client with ``agreed``. What can't be agreed on is the ERROR frame to send, after
which the connection ends.
"""

from dataclasses import dataclass, field

from polywire.protocols.micromsg.errors import (
    BAD_FRAME,
    BAD_HANDSHAKE,
    BAD_VERSION,
    UNSUPPORTED_EXTENSION,
    LocalProtocolError,
)
from polywire.protocols.micromsg.frames import MAJOR, MINOR, Error, Extension, Handshake
from polywire.protocols.micromsg.text import (
    ACK,
    BATCH_ACK,
    DEFAULT_COUNT,
    DOTNET,
    JSON,
    KNOWN,
    LARGEST_COUNT,
    PUB_SUB,
    VENDOR_PREFIX,
    X_AUTH,
    X_NACK,
    NamedExtension,
    batch_ack,
    is_field,
)

MAX_EXTENSIONS = 255
"""MICROMSG-166."""
WITH_FRAMES = (ACK, BATCH_ACK, DOTNET)
"""The official extensions that have EXTENSION frames."""
CREDENTIALS = (frozenset({"user", "password"}), frozenset({"token"}))
"""MICROMSG-115: the properties ``x-auth`` may have."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What one side brings into the handshake.

    ``supported`` are the names of the extensions it can use; a client uses each of them that the server suggests.
    ``required`` and ``optional`` are what it asks for by itself. ``max_count`` caps the window of ``batch-ack``.
    ``forwards``: a server that passes vendor frames on, and so agrees on any vendor extension offered as optional.
    """

    identity: str
    supported: tuple[str, ...] = KNOWN
    required: tuple[NamedExtension, ...] = ()
    optional: tuple[NamedExtension, ...] = ()
    max_count: int = DEFAULT_COUNT
    minor: int = MINOR
    forwards: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.max_count <= LARGEST_COUNT:
            reason = f"max_count is {self.max_count}, allowed are 1 to {LARGEST_COUNT}"
            raise LocalProtocolError(reason, rule="MICROMSG-113")
        for name in self.supported:
            if name not in KNOWN and not (name.startswith(VENDOR_PREFIX) and is_field(name)):
                reason = f"{name!r} is no official extension, and those of vendors begin with {VENDOR_PREFIX}"
                raise LocalProtocolError(reason, rule="MICROMSG-10")
        asked = [extension.name for extension in (*self.required, *self.optional)]
        for name in asked:
            if name not in self.supported:
                raise LocalProtocolError(f"asks for {name!r}, which it does not support", rule="MICROMSG-08")
            if asked.count(name) > 1:
                raise LocalProtocolError(f"asks for {name!r} twice", rule="MICROMSG-164")

    def accepts(self, name: str) -> bool:
        """Whether a server with these terms may agree on an extension that the client offers as optional."""
        return name in self.supported or (self.forwards and name.startswith(VENDOR_PREFIX) and is_field(name))


@dataclass(frozen=True, slots=True)
class Agreement:
    """What two sides agreed on: the version and the extensions, in the order that numbers them."""

    version: tuple[int, int]
    extensions: tuple[NamedExtension, ...]
    peer: str
    cap: int = field(default=LARGEST_COUNT, repr=False)

    def number(self, name: str) -> int | None:
        """The number of an extension in EXTENSION frames, None where it was not agreed on."""
        for number, extension in enumerate(self.extensions, 1):
            if extension.name == name:
                return number
        return None

    def extension(self, number: int) -> NamedExtension | None:
        """The extension with this number."""
        return self.extensions[number - 1] if 1 <= number <= len(self.extensions) else None

    @property
    def vendors(self) -> dict[str, int]:
        """The vendor extensions agreed on, with their numbers; without ``x-auth`` and ``x-nack``, which end here."""
        own = (*KNOWN, X_NACK)
        return {each.name: number for number, each in enumerate(self.extensions, 1) if each.name not in own}

    def has(self, name: str) -> bool:
        """Whether an extension was agreed on."""
        return self.number(name) is not None

    @property
    def acks(self) -> str | None:
        """The extension that acknowledges messages (MICROMSG-116), None where there are no acks (MICROMSG-04)."""
        return BATCH_ACK if self.has(BATCH_ACK) else ACK if self.has(ACK) else None

    @property
    def window(self) -> int:
        """How many messages may be unacknowledged, 0 where there are no acks; for ``SendWindow``."""
        match self.acks:
            case "batch-ack":
                count = next(one.max_count for one in self.extensions if one.name == BATCH_ACK)
                return min(count, self.cap)  # MICROMSG-107
            case "ack":
                return 1
        return 0

    @property
    def pub_sub(self) -> bool:
        """Whether ``subscribe`` and ``unsubscribe`` may be used."""
        return self.has(PUB_SUB)

    @property
    def json(self) -> bool:
        """Whether payloads must be JSON."""
        return self.has(JSON)

    @property
    def credentials(self) -> dict[str, str] | None:
        """What ``x-auth`` says who the client is, None without it."""
        for extension in self.extensions:
            if extension.name == X_AUTH:
                return dict(extension.properties)
        return None

    def purpose(self, frame: Extension) -> str | Error:
        """The name of the extension an EXTENSION frame is for, or the ERROR to answer with (MICROMSG-167)."""
        extension = self.extension(frame.number)
        if extension is None:
            reason = f"extension {frame.number} was not agreed on, there are {len(self.extensions)}"
        elif extension.name in {ACK, BATCH_ACK} and extension.name != self.acks:
            reason = f"{extension.name} is not in use, {self.acks} is"
        elif extension.name in WITH_FRAMES or extension.name not in KNOWN:
            return extension.name
        else:
            reason = f"{extension.name} has no frames"
        return Error(BAD_FRAME, (("reason", reason),))


def offer(terms: Terms) -> Handshake:
    """The client's first message."""
    return Handshake(terms.identity, terms.required, terms.optional, MAJOR, terms.minor)


def reply(received: Handshake, terms: Terms) -> Handshake | Error:
    """The server's answer to an offer."""
    if received.major != MAJOR:
        return _bad_version(terms)
    for extension in received.required:
        if extension.name not in terms.supported:
            return _unsupported(extension.name)  # MICROMSG-14, MICROMSG-192
    theirs = _names(received.required)
    offered = theirs | _names(received.optional)
    asked = [each.max_count for each in (*received.required, *received.optional) if each.name == BATCH_ACK]
    required = [_own(extension, terms, asked) for extension in terms.required if extension.name not in theirs]
    optional: list[NamedExtension] = []
    if BATCH_ACK in theirs:  # MICROMSG-107: else the client could not know the cap
        optional.append(_own(NamedExtension(BATCH_ACK), terms, asked))
    taken = theirs | _names(required)
    wanted = [NamedExtension(each.name) for each in received.optional if terms.accepts(each.name)]  # MICROMSG-106
    for extension in (*wanted, *terms.optional):
        if extension.name == BATCH_ACK and ACK in offered and not asked:
            continue  # the client prefers single acks
        if extension.name not in taken:
            taken.add(extension.name)
            optional.append(_own(extension, terms, asked))
    if BATCH_ACK in taken:  # MICROMSG-116
        optional = [extension for extension in optional if extension.name != ACK]
    minor = min(received.minor, terms.minor)
    return Handshake(terms.identity, tuple(required), tuple(optional), MAJOR, minor)


def final(received: Handshake, terms: Terms) -> Handshake | Error:
    """The client's last message, answering the server's reply to its ``offer``."""
    if received.major != MAJOR:
        return _bad_version(terms)
    suggested = _names((*received.required, *received.optional))
    own = {extension.name: extension for extension in (*terms.required, *terms.optional)}
    # A client without credentials can't use x-auth, whatever the server wants.
    usable = [name for name in terms.supported if name != X_AUTH or name in own]
    required = {extension.name: extension for extension in terms.required}
    for name in [extension.name for extension in received.required]:
        if name not in usable:
            return _unsupported(name)  # MICROMSG-15
        required.setdefault(name, own.get(name, NamedExtension(name)))
    optional = {}
    for name in [extension.name for extension in received.optional]:
        if name in usable and name not in required:
            optional[name] = own.get(name, NamedExtension(name))
    if BATCH_ACK in required or BATCH_ACK in optional:  # MICROMSG-116
        optional.pop(ACK, None)
    for chosen in (required, optional):
        if BATCH_ACK in chosen:
            chosen[BATCH_ACK] = _counted(chosen[BATCH_ACK], received, terms, known=BATCH_ACK in suggested)
    minor = min(received.minor, terms.minor)
    return Handshake(terms.identity, tuple(required.values()), tuple(optional.values()), MAJOR, minor)


def agreed(received: Handshake, sent: Handshake) -> Agreement:
    """What the client has agreed on with the reply it ``received`` and the final message it ``sent``."""
    cap = LARGEST_COUNT
    for extension in (*received.required, *received.optional):
        if extension.name == BATCH_ACK:
            cap = extension.max_count
    version = (MAJOR, min(received.minor, sent.minor))
    return Agreement(version, (*sent.required, *sent.optional), received.identity, cap)


def agree(offered: Handshake, replied: Handshake, received: Handshake, terms: Terms) -> Agreement | Error:
    """What the server has agreed on with the final message it ``received``."""
    if received.major != MAJOR:
        return _bad_version(terms)
    used = (*received.required, *received.optional)
    names = [extension.name for extension in used]
    named = _names((*offered.required, *offered.optional, *replied.required, *replied.optional))
    for name in [extension.name for extension in (*offered.required, *replied.required)]:
        if name not in names:
            return _bad_handshake("a required extension is not in the final message", name)  # MICROMSG-103
    for name in names:
        if name not in named:
            return _bad_handshake("nobody named this extension before the final message", name)  # MICROMSG-104
        if not terms.accepts(name):
            return _unsupported(name)  # MICROMSG-165
    if len(set(names)) < len(names):
        twice = next(name for at, name in enumerate(names) if name in names[:at])
        return _bad_handshake("the final message names this extension twice", twice)  # MICROMSG-164
    if len(names) > MAX_EXTENSIONS:
        return _bad_handshake(f"{len(names)} extensions, allowed are {MAX_EXTENSIONS}", None)
    for extension in used:
        if extension.name == X_AUTH and frozenset(key for key, _ in extension.properties) not in CREDENTIALS:
            return _bad_handshake("it needs user and password, or token, and nothing else", X_AUTH)
    cap = next(
        (one.max_count for one in (*replied.required, *replied.optional) if one.name == BATCH_ACK), terms.max_count
    )
    for extension in used:
        if extension.name == BATCH_ACK and extension.properties and extension.max_count > cap:
            return _bad_handshake(
                f"max-count is {extension.max_count}, the reply allows {cap}", BATCH_ACK
            )  # MICROMSG-107
    counted = tuple(batch_ack(cap) if one.name == BATCH_ACK and not one.properties else one for one in used)
    version = (MAJOR, min(offered.minor, replied.minor, received.minor))
    return Agreement(version, counted, received.identity, cap)


def _names(extensions: tuple[NamedExtension, ...] | list[NamedExtension]) -> set[str]:
    return {extension.name for extension in extensions}


def _own(extension: NamedExtension, terms: Terms, asked: list[int]) -> NamedExtension:
    """An extension as the server names it. The count of ``batch-ack`` is never above what the client asked for."""
    if extension.name != BATCH_ACK:
        return extension
    suggested = [extension.max_count] if extension.properties and not asked else []
    return batch_ack(min([terms.max_count, *asked, *suggested]))


def _counted(own: NamedExtension, received: Handshake, terms: Terms, *, known: bool) -> NamedExtension:
    """``batch-ack`` as the client ends with it: the count it asked for, or its cap, within the server's."""
    count = own.max_count if own.properties else terms.max_count
    if known:
        both = (*received.required, *received.optional)
        count = min(count, next(one.max_count for one in both if one.name == BATCH_ACK))
    return batch_ack(count)


def _bad_version(terms: Terms) -> Error:
    return Error(BAD_VERSION, (("version", f"{MAJOR}.{terms.minor}"),))


def _unsupported(name: str) -> Error:
    return Error(UNSUPPORTED_EXTENSION, (("name", name),))


def _bad_handshake(reason: str, name: str | None) -> Error:
    arguments = (("reason", reason),) if name is None else (("name", name), ("reason", reason))
    return Error(BAD_HANDSHAKE, arguments)
