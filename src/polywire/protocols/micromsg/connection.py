"""One MicroMsg2 connection without IO, for either end: handshake, order of frames, sequence numbers and windows.

``Connection`` takes bytes with ``receive`` and returns frames with ``next_event``; ``send`` encodes what it is given.
Both are checked against ``TRANSITIONS``, the windows and the extensions that were agreed on. The hub's session and the
peers of programs are built on it.

The client makes an offer, the server replies, the client ends with its final message (MICROMSG-11, MICROMSG-101). What
they agree on depends only on these messages and on each side's ``Terms``.
"""

from collections.abc import Iterable, Mapping
from enum import Enum
from types import MappingProxyType
from typing import ClassVar, Final, cast, final

from mypy_extensions import i64, mypyc_attr

from polywire.protocols.micromsg.errors import (
    BAD_ACK,
    BAD_FRAME,
    BAD_HANDSHAKE,
    UNSUPPORTED_EXTENSION,
    WINDOW_EXCEEDED,
    LocalProtocolError,
    RemoteProtocolError,
    ends_connection,
)
from polywire.protocols.micromsg.frames import (
    MAJOR,
    MAX_CONTROL,
    MAX_HANDSHAKE,
    MAX_MESSAGE,
    MINOR,
    Decoder,
    Error,
    Extension,
    Handshake,
    Message,
    ack,
    encode,
    read_ack,
    renumbered,
)
from polywire.protocols.micromsg.text import (
    ACK,
    BATCH_ACK,
    DEFAULT_COUNT,
    DOTNET,
    JSON,
    KNOWN,
    LARGEST_COUNT,
    MAX_PROPERTIES,
    PUB_SUB,
    VENDOR_PREFIX,
    X_AUTH,
    X_NACK,
    NamedExtension,
    batch_ack,
    is_field,
    json_problem,
    shown,
)
from polywire.wire.frame import Frame, Role

MAX_EXTENSIONS: Final = 255
"""MICROMSG-166."""
WITH_FRAMES: Final = (ACK, BATCH_ACK, DOTNET)
"""The official extensions that have EXTENSION frames."""
CREDENTIALS: Final = (frozenset({"user", "password"}), frozenset({"token"}))
"""MICROMSG-115: the properties ``x-auth`` may have."""
LAST: Final = 65535
"""MICROMSG-118: the sequence number before 1."""


# The course of a connection.


class State(Enum):
    """How far a connection is, for the side that keeps it."""

    CONNECTED = "connected"
    OFFERED = "offered"
    REPLIED = "replied"
    ESTABLISHED = "established"
    CLOSED = "closed"


class Event(Enum):
    """What moves a connection on: a handshake message or frame, sent or received, or its end."""

    OFFER = "offer"
    REPLY = "reply"
    FINAL = "final message"
    FRAME = "frame"
    PASSING_ERROR = "passing error"
    ENDING_ERROR = "ending error"
    LOST = "lost"


TRANSITIONS: Final[Mapping[tuple[State, Event], State]] = MappingProxyType(
    {
        # MICROMSG-11, MICROMSG-101: the client offers, the server replies, the client ends the handshake.
        (State.CONNECTED, Event.OFFER): State.OFFERED,
        (State.OFFERED, Event.REPLY): State.REPLIED,
        (State.REPLIED, Event.FINAL): State.ESTABLISHED,
        # After the final message both sides send frames.
        (State.ESTABLISHED, Event.FRAME): State.ESTABLISHED,
        (State.ESTABLISHED, Event.PASSING_ERROR): State.ESTABLISHED,
        # MICROMSG-13 to MICROMSG-15, MICROMSG-100: any error before the end of the handshake ends the connection.
        (State.CONNECTED, Event.PASSING_ERROR): State.CLOSED,
        (State.OFFERED, Event.PASSING_ERROR): State.CLOSED,
        (State.REPLIED, Event.PASSING_ERROR): State.CLOSED,
        (State.CONNECTED, Event.ENDING_ERROR): State.CLOSED,
        (State.OFFERED, Event.ENDING_ERROR): State.CLOSED,
        (State.REPLIED, Event.ENDING_ERROR): State.CLOSED,
        (State.ESTABLISHED, Event.ENDING_ERROR): State.CLOSED,
        (State.CONNECTED, Event.LOST): State.CLOSED,
        (State.OFFERED, Event.LOST): State.CLOSED,
        (State.REPLIED, Event.LOST): State.CLOSED,
        (State.ESTABLISHED, Event.LOST): State.CLOSED,
        (State.CLOSED, Event.LOST): State.CLOSED,
    }
)


@final
@mypyc_attr(acyclic=True)
class Ended(Frame):
    """The peer broke a rule: ``error`` is the ERROR to close the connection with.

    ``oversize`` is the size of a message over the size limit, 0 if that is not what was wrong.
    """

    __match_args__: ClassVar[tuple[str, ...]] = ("error", "rule", "oversize")

    def __init__(self, error: Error, rule: str, oversize: int = 0) -> None:
        self.error: Final = error
        self.rule: Final = rule
        self.oversize: Final = oversize


@final
@mypyc_attr(acyclic=True)
class Limits(Frame):
    """The limits of ``Decoder``, and how many destinations the other side may subscribe to."""

    __match_args__: ClassVar[tuple[str, ...]] = (
        "max_message",
        "max_control",
        "max_properties",
        "max_handshake",
        "subscriptions",
    )

    def __init__(
        self,
        max_message: int = MAX_MESSAGE,
        max_control: int = MAX_CONTROL,
        max_properties: int = MAX_PROPERTIES,
        max_handshake: int = MAX_HANDSHAKE,
        subscriptions: int = 1024,
    ) -> None:
        self.max_message: Final = max_message
        self.max_control: Final = max_control
        self.max_properties: Final = max_properties
        self.max_handshake: Final = max_handshake
        self.subscriptions: Final = subscriptions


DEFAULT_LIMITS: Final = Limits()


# What the two sides agree on.


@final
@mypyc_attr(acyclic=True)
class Terms(Frame):
    """What one side brings into the handshake.

    ``supported`` are the names of the extensions it can use; a client uses each of them that the server suggests.
    ``required`` and ``optional`` are what it asks for by itself. ``max_count`` caps the window of ``batch-ack``.
    ``forwards``: a server that passes vendor frames on, and so agrees on any vendor extension offered as optional.
    """

    __match_args__: ClassVar[tuple[str, ...]] = (
        "identity",
        "supported",
        "required",
        "optional",
        "max_count",
        "minor",
        "forwards",
    )

    def __init__(
        self,
        identity: str,
        supported: tuple[str, ...] = KNOWN,
        required: tuple[NamedExtension, ...] = (),
        optional: tuple[NamedExtension, ...] = (),
        max_count: int = DEFAULT_COUNT,
        minor: int = MINOR,
        forwards: bool = False,  # noqa: FBT001, FBT002 - frames are built by position
    ) -> None:
        self.identity: Final = identity
        self.supported: Final = supported
        self.required: Final = required
        self.optional: Final = optional
        self.max_count: Final = max_count
        self.minor: Final = minor
        self.forwards: Final = forwards
        if not 1 <= max_count <= LARGEST_COUNT:
            raise LocalProtocolError(f"max_count is {max_count}, allowed are 1 to {LARGEST_COUNT}", rule="MICROMSG-113")
        for name in supported:
            if name not in KNOWN and not _is_vendor(name):
                reason = f"{name!r} is not an official extension, and those of vendors begin with {VENDOR_PREFIX}"
                raise LocalProtocolError(reason, rule="MICROMSG-10")
        asked = [extension.name for extension in (*required, *optional)]
        for name in asked:
            if name not in supported:
                raise LocalProtocolError(f"requests {name!r}, which it does not support", rule="MICROMSG-08")
            if asked.count(name) > 1:
                raise LocalProtocolError(f"requests {name!r} twice", rule="MICROMSG-164")

    def accepts(self, name: str) -> bool:
        """Whether a server with these terms may agree on an extension that the client offers as optional."""
        return name in self.supported or (self.forwards and _is_vendor(name))


@final
@mypyc_attr(acyclic=True)
class Agreement(Frame):
    """What two sides agreed on: the version and the extensions, in the order that numbers them.

    ``peer`` is the identity of the other side. ``cap`` is the most that ``window`` may be.
    """

    __match_args__: ClassVar[tuple[str, ...]] = ("version", "extensions", "peer", "cap")

    def __init__(
        self, version: tuple[int, int], extensions: tuple[NamedExtension, ...], peer: str, cap: int = LARGEST_COUNT
    ) -> None:
        self.version: Final = version
        self.extensions: Final = extensions
        self.peer: Final = peer
        self.cap: Final = cap

    def number(self, name: str) -> int | None:
        """The number of an extension in EXTENSION frames, None if it was not agreed on."""
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
        """The extension that acknowledges messages (MICROMSG-116), None if there are no acks (MICROMSG-04)."""
        return BATCH_ACK if self.has(BATCH_ACK) else ACK if self.has(ACK) else None

    @property
    def window(self) -> int:
        """How many messages may be unacknowledged, 0 if there are no acks; for ``SendWindow``."""
        for extension in self.extensions:
            if extension.name == BATCH_ACK:
                return min(extension.max_count, self.cap)  # MICROMSG-107
        return 1 if self.has(ACK) else 0

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
        """What ``x-auth`` says about the client, None without it."""
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
        return _error(BAD_FRAME, reason)


def _reply_to(offer: Handshake, terms: Terms) -> Handshake | Error:
    """The server's reply to an offer."""
    for extension in offer.required:
        if extension.name not in terms.supported:
            return _unsupported(extension.name)  # MICROMSG-14, MICROMSG-192
    theirs = _names(offer.required)
    offered = theirs | _names(offer.optional)
    asked = [each.max_count for each in (*offer.required, *offer.optional) if each.name == BATCH_ACK]
    required = [_counted(extension, terms, asked) for extension in terms.required if extension.name not in theirs]
    optional: list[NamedExtension] = []
    if BATCH_ACK in theirs:  # MICROMSG-107: else the client could not know the cap
        optional.append(_counted(NamedExtension(BATCH_ACK), terms, asked))
    taken = theirs | _names(required)
    wanted = [NamedExtension(each.name) for each in offer.optional if terms.accepts(each.name)]  # MICROMSG-106
    for extension in (*wanted, *terms.optional):
        if extension.name == BATCH_ACK and ACK in offered and not asked:
            continue  # the client prefers single acks
        if extension.name not in taken:
            taken.add(extension.name)
            optional.append(_counted(extension, terms, asked))
    if BATCH_ACK in taken:  # MICROMSG-116
        optional = [extension for extension in optional if extension.name != ACK]
    return Handshake(terms.identity, tuple(required), tuple(optional), MAJOR, min(offer.minor, terms.minor))


def _final_message(reply: Handshake, terms: Terms) -> Handshake | Error:
    """The client's final message, which answers the server's reply to its offer."""
    own = {extension.name: extension for extension in (*terms.required, *terms.optional)}
    # A client without credentials can't use x-auth, even if the server wants it.
    usable = [name for name in terms.supported if name != X_AUTH or name in own]
    required = {extension.name: extension for extension in terms.required}
    for extension in reply.required:
        if extension.name not in usable:
            return _unsupported(extension.name)  # MICROMSG-15
        required.setdefault(extension.name, own.get(extension.name, NamedExtension(extension.name)))
    optional: dict[str, NamedExtension] = {}
    for extension in reply.optional:
        if extension.name in usable and extension.name not in required:
            optional[extension.name] = own.get(extension.name, NamedExtension(extension.name))
    if BATCH_ACK in required or BATCH_ACK in optional:  # MICROMSG-116
        optional.pop(ACK, None)
    for chosen in (required, optional):
        mine = chosen.get(BATCH_ACK)
        if mine is not None:  # the count it asked for, or its cap, within the server's
            count = mine.max_count if mine.properties else terms.max_count
            chosen[BATCH_ACK] = batch_ack(min(count, _cap(reply, LARGEST_COUNT)))
    version = min(reply.minor, terms.minor)
    return Handshake(terms.identity, tuple(required.values()), tuple(optional.values()), MAJOR, version)


def _agreed(reply: Handshake, last: Handshake) -> Agreement:
    """What the client has agreed on with the reply it received and the final message it sends."""
    version = (MAJOR, min(reply.minor, last.minor))
    used = (*last.required, *last.optional)
    return Agreement(version, used, reply.identity, _cap(reply, LARGEST_COUNT))


def _agree(offer: Handshake, reply: Handshake, last: Handshake, terms: Terms) -> Agreement | Error:
    """What the server has agreed on with the final message it received."""
    used = (*last.required, *last.optional)
    names = [extension.name for extension in used]
    named = _names((*offer.required, *offer.optional, *reply.required, *reply.optional))
    for extension in (*offer.required, *reply.required):
        if extension.name not in names:
            return _bad_handshake("a required extension is not in the final message", extension.name)  # MICROMSG-103
    for name in names:
        if name not in named:
            return _bad_handshake("neither offer nor reply named this extension", name)  # MICROMSG-104
        if not terms.accepts(name):
            return _unsupported(name)  # MICROMSG-165
        if names.count(name) > 1:
            return _bad_handshake("the final message names this extension twice", name)  # MICROMSG-164
    if len(names) > MAX_EXTENSIONS:
        return _error(BAD_HANDSHAKE, f"{len(names)} extensions, allowed are {MAX_EXTENSIONS}")
    cap = _cap(reply, terms.max_count)
    for extension in used:
        if extension.name == X_AUTH and frozenset([key for key, _ in extension.properties]) not in CREDENTIALS:
            return _bad_handshake("it needs user and password, or token, and nothing else", X_AUTH)
        if extension.name == BATCH_ACK and extension.properties and extension.max_count > cap:  # MICROMSG-107
            return _bad_handshake(f"max-count is {extension.max_count}, the reply allows {cap}", BATCH_ACK)
    counted = tuple([batch_ack(cap) if one.name == BATCH_ACK and not one.properties else one for one in used])
    version = (MAJOR, min(offer.minor, reply.minor, last.minor))
    return Agreement(version, counted, last.identity, cap)


def _counted(extension: NamedExtension, terms: Terms, asked: list[int]) -> NamedExtension:
    """An extension as the server names it. The count of ``batch-ack`` is never above what the client asked for."""
    if extension.name != BATCH_ACK:
        return extension
    suggested = [extension.max_count] if extension.properties and not asked else []
    return batch_ack(min([terms.max_count, *asked, *suggested]))


def _cap(reply: Handshake, default: int) -> int:
    """The count of ``batch-ack`` in the server's reply."""
    for extension in (*reply.required, *reply.optional):
        if extension.name == BATCH_ACK:
            return extension.max_count
    return default


def _names(extensions: tuple[NamedExtension, ...] | list[NamedExtension]) -> set[str]:
    return {extension.name for extension in extensions}


def _is_vendor(name: str) -> bool:
    return name.startswith(VENDOR_PREFIX) and is_field(name)


def _error(name: str, reason: str) -> Error:
    return Error(name, (("reason", reason),))


def _unsupported(name: str) -> Error:
    return Error(UNSUPPORTED_EXTENSION, (("name", name),))


def _bad_handshake(reason: str, name: str) -> Error:
    return Error(BAD_HANDSHAKE, (("name", name), ("reason", reason)))


# Sequence numbers and acks. Each direction of a connection has its own numbers and its own window. A window of 0 means
# that no acks were agreed on: numbers are counted all the same, and nothing waits. With ``ack`` the window is 1, with
# ``batch-ack`` the agreed count. A mistake of the peer is the ERROR frame to answer with, and changes nothing.


@final
class SendWindow:
    """The numbers of what this side sends. ``size``: how many messages may be unacknowledged, 0 for no acks."""

    def __init__(self, size: int = 0) -> None:
        self._size: i64 = _checked(size)
        self._sent: i64 = LAST
        self._acked: i64 = LAST
        self._pending: i64 = 0

    def is_open(self) -> bool:
        """Whether another message may be sent now."""
        return self._size == 0 or self._pending < self._size

    def pending(self) -> int:
        """How many messages are sent and not acknowledged; 0 if there are no acks."""
        return self._pending

    def due(self) -> int:
        """The number the next message will have."""
        return 1 if self._sent == LAST else self._sent + 1

    def take(self) -> int:
        """The number of the message to be sent. Raises ``LocalProtocolError`` while the window is closed."""
        if not self.is_open():
            reason = f"{self._pending} messages are unacknowledged, {self._size} are allowed"
            raise LocalProtocolError(reason, rule="MICROMSG-06")
        self._sent = 1 if self._sent == LAST else self._sent + 1
        if self._size:
            self._pending += 1
        return self._sent

    def place(self, sequence: int) -> int | Error:
        """How many messages that wait for an ack were sent before this one, or the ERROR ``bad-ack``."""
        count: i64 = _distance(self._acked, sequence) if 1 <= sequence <= LAST else 0
        if not 1 <= count <= self._pending:
            return _error(BAD_ACK, f"message {sequence} is not one of the {self._pending} that wait for an ack")
        return count - 1

    def acked(self, sequence: int) -> int | Error:
        """How many messages an ack of this number acknowledges, or the ERROR ``bad-ack``."""
        place = self.place(sequence)
        if isinstance(place, Error):
            return place
        self._acked = sequence
        self._pending -= place + 1
        return place + 1


@final
class ReceiveWindow:
    """The numbers of what the peer sends. ``size`` as for ``SendWindow``."""

    def __init__(self, size: int = 0) -> None:
        self._size: i64 = _checked(size)
        self._received: i64 = LAST
        self._acked: i64 = LAST
        self._pending: i64 = 0

    def pending(self) -> int:
        """How many messages arrived and were not acknowledged; 0 if there are no acks."""
        return self._pending

    def received(self, sequence: int) -> Error | None:
        """Count a message, or the ERROR ``bad-frame`` or ``window-exceeded``."""
        due: i64 = 1 if self._received == LAST else self._received + 1
        if sequence != due:
            return _error(BAD_FRAME, f"expected message {due}, received {sequence}")
        if self._size:
            if self._pending >= self._size:
                return _error(WINDOW_EXCEEDED, f"message {sequence} came while {self._pending} wait for their ack")
            self._pending += 1
        self._received = due
        return None

    def acknowledge(self, sequence: int) -> int:
        """Count an ack this side sends; how many messages it acknowledges. Raises ``LocalProtocolError``."""
        count: i64 = _distance(self._acked, sequence) if 1 <= sequence <= LAST else 0
        if not 1 <= count <= self._pending:
            raise LocalProtocolError(f"message {sequence} does not wait for an ack", rule="MICROMSG-128")
        self._acked = sequence
        self._pending -= count
        return count


def _distance(earlier: i64, later: i64) -> i64:
    """How many numbers ``later`` is after ``earlier``, across the wrap (MICROMSG-69)."""
    steps = later - earlier
    return steps if steps >= 0 else steps + LAST


def _checked(size: int) -> i64:
    if not 0 <= size <= LARGEST_COUNT:
        raise LocalProtocolError(f"a window of {size} messages, allowed are 0 to {LARGEST_COUNT}", rule="MICROMSG-113")
    return size


# The connection.


@final
class Connection:
    """One side of a connection. ``state`` is how far it is; ``agreement`` is there once it is established.

    After a message ``type_name`` is its .NET type: a type sticks until another one is named (MICROMSG-71). After an
    ack ``acknowledged`` is the number of messages it acknowledges, and they are out of the window ``outgoing``.
    """

    def __init__(self, role: Role, terms: Terms, limits: Limits = DEFAULT_LIMITS) -> None:
        self.role: Final = role
        self.state = State.CONNECTED
        self.agreement: Agreement | None = None
        self.outgoing = SendWindow()
        self.incoming = ReceiveWindow()
        self.ack_number = 0
        self.vendors: dict[str, int] = {}
        self.type_name = ""
        self.acknowledged = 0
        self._terms: Final = terms
        self._decoder: Final = Decoder(
            role,
            max_message=limits.max_message,
            max_control=limits.max_control,
            max_properties=limits.max_properties,
            max_handshake=limits.max_handshake,
        )
        self._frames: list[Frame] = []
        self._next: i64 = 0  # the first of them that was not pulled
        self._violation: Ended | None = None  # what comes after them
        self._begun = False  # whether anything was received
        self._reads = True  # until the peer breaks a rule, or the end
        self._established = False  # whether frames are allowed in this state
        self._offer: Handshake | None = None
        self._reply: Handshake | None = None
        self._answer: Handshake | None = None  # this side's next handshake message
        if role is Role.CLIENT:
            self._answer = Handshake(terms.identity, terms.required, terms.optional, MAJOR, terms.minor)
        self._type_number = 0
        self._json = False
        self._named_type = ""  # the type the other side assumes for the next message

    def receive(self, data: bytes) -> None:
        """Take bytes from the peer. What they contain is returned by ``next_event``, as far as it is asked for."""
        if not self._reads or self._violation is not None:
            return
        self._begun = True
        try:
            frames = self._decoder.feed(data)
        except RemoteProtocolError as error:
            frames = cast("list[Frame]", error.frames)
            self._violation = Ended(cast("Error", error.reply), error.rule, error.oversize)
        if self._frames:
            self._frames.extend(frames)
        else:
            self._frames = frames

    def next_event(self) -> Frame | None:
        """The next frame, or ``Ended`` if the peer broke a rule; None if more bytes are needed, or after the end."""
        while self._reads:
            if self._next == len(self._frames):
                self._frames = []
                self._next = 0
                violation = self._violation
                self._reads = violation is None
                return violation
            frame = self._frames[self._next]
            self._next += 1
            wrong: Ended | None = None
            if not self._established and not isinstance(frame, (Handshake, Error)):
                wrong = Ended(_error(BAD_HANDSHAKE, "a frame came before the final message"), "MICROMSG-101")
            elif isinstance(frame, Message):
                wrong = self._message(frame)
            elif isinstance(frame, Extension):
                if frame.number == self._type_number:
                    wrong = self._type(frame.payload)
                    if wrong is None:
                        continue
                else:
                    wrong = self._extension(frame)
            elif isinstance(frame, Handshake):
                wrong = self._handshake(frame)
            elif isinstance(frame, Error):
                self._enter(after(self.state, _error_event(frame)))
            if wrong is None:
                return frame
            self._reads = False
            return wrong
        return None

    def handshake(self) -> bytes:
        """This side's next handshake message: the client's offer, the server's reply, or the client's final message.

        Raises ``LocalProtocolError`` if it is not this side's turn.
        """
        answer = self._answer
        if answer is None:
            raise LocalProtocolError(f"unexpected handshake message while {self.state.value}", rule="MICROMSG-101")
        return self.send(answer)

    def send(self, frame: Frame) -> bytes:
        """The bytes of a frame. Raises ``LocalProtocolError``, and changes nothing, if it may not be sent now."""
        if isinstance(frame, Handshake):
            return self._send_handshake(frame)
        if isinstance(frame, Error):
            following = after(self.state, _error_event(frame))
            data = encode(frame)
            self._enter(following)
            return data
        self._require_frames()
        if isinstance(frame, Message):
            return self._send_message(frame)
        if isinstance(frame, Extension):
            self._send_extension(frame)
        return encode(frame)

    def send_message(
        self,
        destination: str,
        payload: bytes,
        properties: str = "",
        type_name: str = "",
        extensions: Iterable[tuple[str, bytes]] = (),
    ) -> bytes:
        """The bytes of the next message, after the vendor frames in ``extensions`` and the frame that names its type.

        Raises ``LocalProtocolError``, and changes nothing, if it may not be sent now.
        """
        self._require_frames()
        if type_name and not self._type_number:
            raise LocalProtocolError("dotnet was not agreed on, so messages have no type", rule="MICROMSG-172")
        before = b"".join([encode(self.vendor_frame(name, attached)) for name, attached in extensions])
        before += self._naming(type_name)
        data = self._send_message(Message(self.outgoing.due(), destination, payload, properties))
        self._named_type = type_name
        return before + data if before else data  # compiled code copies even for nothing

    def prepared(self, octets: bytes, type_name: str) -> bytes:
        """An encoded message with the next number, after the frame that names its type. ``sent`` counts it."""
        self._require_frames()
        numbered = renumbered(octets, self.outgoing.due())
        if self._type_number:
            naming = self._naming(type_name)
            if naming:
                return naming + numbered
        return numbered

    def sent(self, type_name: str) -> None:
        """Count a message that was ``prepared``: it is sent."""
        self.outgoing.take()
        self._named_type = type_name

    def vendor_frame(self, name: str, payload: bytes) -> Extension:
        """A frame of a vendor extension. Raises ``LocalProtocolError`` if it was not agreed on."""
        number = self.vendors.get(name)
        if number is None:
            raise LocalProtocolError(f"{name} was not agreed on, or is not a vendor's", rule="MICROMSG-167")
        return Extension(number, payload)

    def purpose(self, frame: Extension) -> str | Error:
        """The name of the extension an EXTENSION frame is for, or the ERROR to answer with (MICROMSG-167)."""
        agreement = self.agreement
        return _error(BAD_FRAME, "no extensions were agreed on") if agreement is None else agreement.purpose(frame)

    def acknowledge(self, sequence: int) -> bytes:
        """The bytes that acknowledge all messages up to this one. Raises ``LocalProtocolError``."""
        return self.send(ack(self.ack_number, sequence))

    def close(self, error: Error | None = None) -> bytes:
        """End the connection: the bytes of the ERROR that says why, nothing if it has ended already.

        MICROMSG-11: a server sends nothing before the client has begun.
        """
        if self.state is State.CLOSED:
            return b""
        if error is None or (self.role is Role.SERVER and not self._begun):
            self.lost()
            return b""
        data = encode(error)
        self._enter(after(self.state, Event.ENDING_ERROR))  # by any name, since this side closes the connection
        return data

    def lost(self) -> None:
        """The transport has ended."""
        self._enter(after(self.state, Event.LOST))

    def pending(self) -> int:
        """How many bytes of an unfinished frame or message are held."""
        return self._decoder.pending()

    def is_established(self) -> bool:
        """Whether frames may be sent: the handshake is done, and the connection has not ended."""
        return self._established

    def _enter(self, state: State) -> None:
        self.state = state
        self._established = (state, Event.FRAME) in TRANSITIONS
        if state is State.CLOSED:
            self._reads = False

    def _require_frames(self) -> None:
        if not self._established:
            after(self.state, Event.FRAME)

    # What is received.

    def _message(self, message: Message) -> Ended | None:
        wrong = self.incoming.received(message.sequence)
        if wrong is not None:
            return Ended(wrong, "MICROMSG-125" if wrong.name == WINDOW_EXCEEDED else "MICROMSG-124")
        if self._json:
            reason = json_problem(message.payload)
            if reason is not None:
                return Ended(_error(BAD_FRAME, reason), "MICROMSG-150")
        return None

    def _extension(self, frame: Extension) -> Ended | None:
        if frame.number != self.ack_number:
            purpose = self.purpose(frame)
            return Ended(purpose, "MICROMSG-167") if isinstance(purpose, Error) else None
        sequence = read_ack(frame.payload)
        if isinstance(sequence, Error):
            return Ended(sequence, "MICROMSG-168")
        count = self.outgoing.acked(sequence)
        if isinstance(count, Error):
            return Ended(count, "MICROMSG-128")
        self.acknowledged = count
        return None

    def _type(self, payload: bytes) -> Ended | None:
        try:
            self.type_name = payload.decode()
        except UnicodeDecodeError as error:
            reason = f"the type name is not UTF-8 at its byte {error.start}"
            return Ended(_error(BAD_FRAME, reason), "MICROMSG-172")
        return None

    def _handshake(self, received: Handshake) -> Ended | None:
        event = self._handshake_event(by_client=self.role is Role.SERVER)
        following = TRANSITIONS.get((self.state, event))
        if following is None:
            return Ended(_error(BAD_HANDSHAKE, f"unexpected {event.value}"), "MICROMSG-101")
        self._enter(following)
        if event is Event.OFFER:
            self._offer = received
            answer = _reply_to(received, self._terms)
            if isinstance(answer, Error):
                return Ended(answer, "MICROMSG-14")
            self._reply = self._answer = answer
        elif event is Event.REPLY:
            self._reply = received
            answer = _final_message(received, self._terms)
            if isinstance(answer, Error):
                return Ended(answer, "MICROMSG-15")
            self._answer = answer
        elif self._offer is not None and self._reply is not None:
            agreement = _agree(self._offer, self._reply, received, self._terms)
            if isinstance(agreement, Error):
                rule = "MICROMSG-165" if agreement.name == UNSUPPORTED_EXTENSION else "MICROMSG-101"
                return Ended(agreement, rule)
            self._establish(agreement)
        return None

    def _handshake_event(self, *, by_client: bool) -> Event:
        """MICROMSG-02: which handshake message it is, by who says it and when."""
        if not by_client:
            return Event.REPLY
        return Event.OFFER if self.state is State.CONNECTED else Event.FINAL

    def _establish(self, agreement: Agreement) -> None:
        self.agreement = agreement
        self.ack_number = agreement.number(agreement.acks or "") or 0
        self.vendors = agreement.vendors
        self._type_number = agreement.number(DOTNET) or 0
        self._json = agreement.json
        self.outgoing = SendWindow(agreement.window)
        self.incoming = ReceiveWindow(agreement.window)

    # What is sent.

    def _send_handshake(self, message: Handshake) -> bytes:
        if message is not self._answer:
            raise LocalProtocolError("only what was negotiated can be sent in the handshake", rule="MICROMSG-101")
        following = after(self.state, self._handshake_event(by_client=self.role is Role.CLIENT))
        data = encode(message)
        self._answer = None
        self._enter(following)
        if self.role is Role.CLIENT and self._reply is not None:
            self._establish(_agreed(self._reply, message))
        return data

    def _send_message(self, message: Message) -> bytes:
        if message.sequence != self.outgoing.due():
            reason = f"message {message.sequence} is sent, but {self.outgoing.due()} is due"
            raise LocalProtocolError(reason, rule="MICROMSG-118")
        problem = json_problem(message.payload) if self._json else None
        if problem is not None:
            raise LocalProtocolError(problem, rule="MICROMSG-150")
        data = encode(message)
        self.outgoing.take()
        return data

    def _send_extension(self, frame: Extension) -> None:
        purpose = self.purpose(frame)
        if isinstance(purpose, Error):
            raise LocalProtocolError(purpose.value("reason") or "", rule="MICROMSG-167")
        if frame.number == self.ack_number:
            sequence = read_ack(frame.payload)
            if isinstance(sequence, Error):
                raise LocalProtocolError(sequence.value("reason") or "", rule="MICROMSG-168")
            self.incoming.acknowledge(sequence)
        elif frame.number == self._type_number:
            self._named_type = frame.payload.decode(errors="replace")

    def _naming(self, type_name: str) -> bytes:
        """The frame to send before a message of this type (empty: none), nothing if none is needed (MICROMSG-148)."""
        if not type_name and not self._named_type:
            return b""
        try:
            payload = type_name.encode()
        except UnicodeEncodeError as error:
            reason = f"the type name {shown(type_name)} can't be written as UTF-8"
            raise LocalProtocolError(reason, rule="MICROMSG-172") from error
        return encode(Extension(self._type_number, payload))


def after(state: State, event: Event) -> State:
    """The state after an event. Raises ``LocalProtocolError`` if the event is not allowed."""
    following = TRANSITIONS.get((state, event))
    if following is None:
        allowed = ", ".join([other.value for known, other in TRANSITIONS if known is state])
        raise LocalProtocolError(f"no {event.value} while {state.value}; allowed: {allowed}", rule="MICROMSG-101")
    return following


def _error_event(error: Error) -> Event:
    return Event.ENDING_ERROR if ends_connection(error.name) else Event.PASSING_ERROR
