"""One end of an sABC connection without I/O: bytes to events, frames to bytes, both checked against the state tables.

The tables are data: ``RECEIVE`` and ``SEND`` map (role, state, command) to the next state, or to the error code and
rule of the refusal. ``Session`` walks them. ``Connection`` puts the codec around it; the hub's session and the peers of
programs are built on it.
"""

import contextlib
from enum import Enum
from secrets import token_urlsafe
from typing import Final, cast, final

from mypy_extensions import i64

from polywire.protocols.sabc.decoder import (
    MAX_HEAD,
    MAX_HEADERS,
    MAX_MESSAGE,
    MAX_UNFINISHED,
    Decoder,
    MessageDecoder,
)
from polywire.protocols.sabc.errors import (
    CONFLICT,
    DRAINING,
    MALFORMED,
    TOO_SLOW,
    UNAUTHORIZED,
    LocalProtocolError,
    RemoteProtocolError,
)
from polywire.protocols.sabc.frames import (
    Assembly,
    Connect,
    Connected,
    Disconnect,
    Disconnecting,
    Error,
    Message,
    encode,
    error_reply,
    split,
)
from polywire.protocols.sabc.headers import CONNECT, CONNECTED, DISCONNECT, DISCONNECTING, ERROR, MESSAGE
from polywire.wire.frame import Discarded, Frame, Role

IDLE: Final = "no data received within the idle timeout"
NO_CONNECT: Final = "no CONNECT received in time"


class State(Enum):
    """The state of a session."""

    NEW = "new"  # no CONNECT yet
    CONNECTING = "connecting"  # CONNECT was received or sent, its answer is due
    OPEN = "open"
    LEAVING = "leaving"  # DISCONNECT was received or sent
    CLOSED = "closed"


@final
class Refusal:
    """An entry of the tables: this command is refused in this state."""

    def __init__(self, code: str, rule: str, reason: str) -> None:
        self.code: Final = code
        self.rule: Final = rule
        self.reason: Final = reason


NO_SESSION: Final = Refusal(UNAUTHORIZED, "SABC-90", "there is no session yet: CONNECT comes first")
OTHER_SESSION: Final = Refusal(UNAUTHORIZED, "SABC-90", "the session-id is not this session's")
SERVER_ONLY: Final = Refusal(MALFORMED, "SABC-92", "only a server sends CONNECTED")
CLIENT_ONLY: Final = Refusal(MALFORMED, "SABC-92", "only a client sends CONNECT and DISCONNECT")
TWICE: Final = Refusal(CONFLICT, "SABC-91", "the session is connected already")
LEFT: Final = Refusal(DRAINING, "SABC-102", "after DISCONNECT nothing more is accepted")
OVER: Final = Refusal("", "SABC-42", "the session is over")

S: Final = Role.SERVER
C: Final = Role.CLIENT
NEW: Final = State.NEW
CONNECTING: Final = State.CONNECTING
OPEN: Final = State.OPEN
LEAVING: Final = State.LEAVING
CLOSED: Final = State.CLOSED

RECEIVE: Final[dict[tuple[Role, State, str], State | Refusal]] = {
    (S, NEW, CONNECT): CONNECTING,
    (S, NEW, CONNECTED): SERVER_ONLY,
    (S, NEW, DISCONNECT): NO_SESSION,
    (S, NEW, DISCONNECTING): CLOSED,
    (S, NEW, MESSAGE): NO_SESSION,
    (S, NEW, ERROR): NEW,
    (S, CONNECTING, CONNECT): TWICE,
    (S, CONNECTING, CONNECTED): SERVER_ONLY,
    (S, CONNECTING, DISCONNECT): NO_SESSION,
    (S, CONNECTING, DISCONNECTING): CLOSED,
    (S, CONNECTING, MESSAGE): NO_SESSION,
    (S, CONNECTING, ERROR): CONNECTING,
    (S, OPEN, CONNECT): TWICE,
    (S, OPEN, CONNECTED): SERVER_ONLY,
    (S, OPEN, DISCONNECT): LEAVING,
    (S, OPEN, DISCONNECTING): CLOSED,
    (S, OPEN, MESSAGE): OPEN,
    (S, OPEN, ERROR): OPEN,
    (S, LEAVING, CONNECT): TWICE,
    (S, LEAVING, CONNECTED): SERVER_ONLY,
    (S, LEAVING, DISCONNECT): LEFT,
    (S, LEAVING, DISCONNECTING): CLOSED,
    (S, LEAVING, MESSAGE): LEFT,
    (S, LEAVING, ERROR): LEAVING,
    (C, NEW, CONNECT): CLIENT_ONLY,
    (C, NEW, CONNECTED): NO_SESSION,
    (C, NEW, DISCONNECT): CLIENT_ONLY,
    (C, NEW, DISCONNECTING): CLOSED,
    (C, NEW, MESSAGE): NO_SESSION,
    (C, NEW, ERROR): NEW,
    (C, CONNECTING, CONNECT): CLIENT_ONLY,
    (C, CONNECTING, CONNECTED): OPEN,
    (C, CONNECTING, DISCONNECT): CLIENT_ONLY,
    (C, CONNECTING, DISCONNECTING): CLOSED,
    (C, CONNECTING, MESSAGE): NO_SESSION,
    (C, CONNECTING, ERROR): CLOSED,  # SABC-96: the server disconnects
    (C, OPEN, CONNECT): CLIENT_ONLY,
    (C, OPEN, CONNECTED): TWICE,
    (C, OPEN, DISCONNECT): CLIENT_ONLY,
    (C, OPEN, DISCONNECTING): CLOSED,
    (C, OPEN, MESSAGE): OPEN,
    (C, OPEN, ERROR): OPEN,
    (C, LEAVING, CONNECT): CLIENT_ONLY,
    (C, LEAVING, CONNECTED): TWICE,
    (C, LEAVING, DISCONNECT): CLIENT_ONLY,
    (C, LEAVING, DISCONNECTING): CLOSED,
    (C, LEAVING, MESSAGE): LEAVING,  # SABC-111: the server still answers
    (C, LEAVING, ERROR): LEAVING,
}
"""What a received command does; whatever is not here is ``OVER``."""

SEND: Final[dict[tuple[Role, State, str], State]] = {
    (S, NEW, ERROR): NEW,
    (S, CONNECTING, CONNECTED): OPEN,
    (S, CONNECTING, ERROR): CONNECTING,
    (S, OPEN, MESSAGE): OPEN,
    (S, OPEN, ERROR): OPEN,
    (S, OPEN, DISCONNECTING): CLOSED,
    (S, LEAVING, MESSAGE): LEAVING,
    (S, LEAVING, ERROR): LEAVING,
    (S, LEAVING, DISCONNECTING): CLOSED,
    (C, NEW, CONNECT): CONNECTING,
    (C, OPEN, MESSAGE): OPEN,
    (C, OPEN, ERROR): OPEN,
    (C, OPEN, DISCONNECT): LEAVING,
    (C, OPEN, DISCONNECTING): CLOSED,
    (C, LEAVING, ERROR): LEAVING,
    (C, LEAVING, DISCONNECTING): CLOSED,
}
"""What a sent command does; whatever is not here must not be sent."""

SEND_RULES: Final[dict[tuple[Role, str], str]] = {
    (S, CONNECT): "SABC-16",
    (C, CONNECTED): "SABC-17",
    (S, DISCONNECT): "SABC-18",
    (S, CONNECTED): "SABC-01",
    (C, CONNECT): "SABC-01",
}

NAMES: Final[dict[type[Frame], str]] = {
    Connect: CONNECT,
    Connected: CONNECTED,
    Disconnect: DISCONNECT,
    Disconnecting: DISCONNECTING,
    Message: MESSAGE,
    Error: ERROR,
}


def new_session_id() -> str:
    """SABC-35: an unguessable id, 128 random bits in 22 characters."""
    return token_urlsafe(16)


@final
class Session:
    """The state of one session, seen from one side. A client knows its ``session_id`` once CONNECTED has come."""

    def __init__(self, side: Role, session_id: str | None = None) -> None:
        self.side: Final = side
        self.session_id = session_id
        self.state = State.NEW

    def receive(self, frame: Frame) -> Frame:
        """The frame if it may come now, otherwise ``Discarded`` with the ERROR to answer."""
        if isinstance(frame, Discarded):
            return frame
        verdict = RECEIVE.get((self.side, self.state, NAMES[type(frame)]), OVER)
        if isinstance(verdict, Refusal):
            return self._discarded(frame, verdict)
        if isinstance(frame, Connected):
            self.session_id = frame.session_id
        elif isinstance(frame, (Message, Disconnect, Disconnecting)) and frame.session_id != self.session_id:
            return self._discarded(frame, OTHER_SESSION)
        self.state = verdict
        return frame

    def send(self, frame: Frame) -> Frame:
        """The frame if it may be sent now. Raises ``LocalProtocolError`` if not; nothing changes then."""
        name = NAMES.get(type(frame), type(frame).__name__)
        state = SEND.get((self.side, self.state, name))
        if state is None:
            rule = SEND_RULES.get((self.side, name), "SABC-02" if self.state is not CLOSED else "SABC-42")
            reason = f"a {self.side.value} can't send {name} when the session is {self.state.value}"
            raise LocalProtocolError(reason, rule=rule)
        if isinstance(frame, (Connected, Message, Disconnect, Disconnecting)) and frame.session_id != self.session_id:
            reason = f"session-id {frame.session_id!r} is not this session's {self.session_id!r}"
            raise LocalProtocolError(reason, rule="SABC-02")
        self.state = state
        return frame

    def reject(self, code: str, reason: str) -> Error:
        """SABC-96: the ERROR that refuses a CONNECT. The session is over, and the connection is to be closed."""
        if self.side is not S or self.state is not CONNECTING:
            raise LocalProtocolError(
                f"there is no CONNECT to refuse: the session is {self.state.value}", rule="SABC-96"
            )
        self.state = CLOSED
        return error_reply(code, reason)

    def expire(self) -> Disconnecting | None:
        """SABC-110: end the session. Returns the DISCONNECTING to send if it was open."""
        was = self.state
        self.state = CLOSED
        if self.session_id is None or (was is not OPEN and was is not LEAVING):
            return None
        return Disconnecting(self.session_id)

    def _discarded(self, frame: Frame, verdict: Refusal) -> Discarded:
        reply = None
        if verdict.code and not isinstance(frame, Error):
            known = self.session_id if self.state is OPEN or self.state is LEAVING else None
            msg_id = frame.msg_id if isinstance(frame, Message) else None
            reply = error_reply(verdict.code, verdict.reason, known, msg_id)
        return Discarded(verdict.rule, verdict.reason, 0, b"", 0, reply)


@final
class Connection:
    """One end of a connection: what it receives as events, what it sends as bytes.

    Events are frames: CONNECT, CONNECTED, DISCONNECT, DISCONNECTING and ERROR as they came, messages as ``Whole``, and
    ``Discarded`` for what broke a rule; ``reply`` has the answer to that. A consumer that waits, for a login say, pulls
    no event meanwhile.

    ``messages``: the transport keeps messages apart, as WebSocket does. A server without ``session_id`` makes one.
    ``frame_size``: longer messages are sent in several frames; ``max_sent``: bytes of all frames of a message that the
    other side accepts; 0 for any size. The other limits are those of ``Decoder``.
    """

    def __init__(
        self,
        role: Role,
        *,
        messages: bool = False,
        session_id: str | None = None,
        max_message: int = MAX_MESSAGE,
        max_head: int = MAX_HEAD,
        max_headers: int = MAX_HEADERS,
        max_unfinished: int = MAX_UNFINISHED,
        frame_size: int = 0,
        max_sent: int = 0,
    ) -> None:
        if session_id is None and role is S:
            session_id = new_session_id()
        self.role: Final = role
        self._session: Final = Session(role, session_id)
        self._decoder: Final = _decoder(
            session_id, max_message, max_head, max_headers, max_unfinished, messages=messages
        )
        self._assembly: Final = Assembly()
        self._frame_size: Final[int] = frame_size
        self._max_sent: Final[int] = max_sent
        self._frames: list[Frame] = []
        self._next: i64 = 0
        self._unread: list[bytes] = []
        self._broken: RemoteProtocolError | None = None

    @property
    def session_id(self) -> str:
        """The session's id, empty before it is known."""
        return self._session.session_id or ""

    @property
    def state(self) -> State:
        """The state of the session."""
        return self._session.state

    @property
    def is_open(self) -> bool:
        """Whether messages may be sent."""
        return self._session.state is OPEN

    @property
    def answers(self) -> bool:
        """Whether messages may be answered: also after DISCONNECT."""
        return self._session.state is OPEN or self._session.state is LEAVING

    @property
    def cuts(self) -> int:
        """How many messages were cut at the size limit."""
        return self._decoder.cuts()

    def allow(self, *, max_message: int, max_head: int) -> None:
        """Apply these limits from now on: those before a login are lower than those after it."""
        self._decoder.allow(max_message=max_message, max_head=max_head)

    def pending(self) -> int:
        """How many bytes of unfinished messages, and of what was not decoded yet, are held."""
        held = self._decoder.pending()
        if len(self._assembly):
            held += self._assembly.pending()
        for data in self._unread:
            held += len(data)
        return held

    def receive(self, data: bytes) -> None:
        """Take bytes of a stream, or one message of a WebSocket. Its events are pulled with ``next_event``."""
        if self._frames or self._broken is not None:
            self._unread.append(data)  # decoded when what came before is pulled: a login may raise the limits
        elif self._session.state is not CLOSED:
            self._decode(data)

    def next_event(self) -> Frame | None:
        """The next event, or None if more data is needed, or the session is over.

        Raises ``RemoteProtocolError`` for what ends the connection, after the events before it.
        """
        session = self._session
        while session.state is not CLOSED:
            if self._next >= len(self._frames):
                self._frames = []  # whatever they hold is not kept until more comes
                self._next = 0
                if self._broken is not None:
                    raise self._broken
                if not self._unread:
                    return None
                self._decode(self._unread.pop(0))
                continue
            frame = self._frames[self._next]
            self._next += 1
            if isinstance(frame, Message):
                if session.state is not OPEN:
                    refused = session.receive(frame)
                    if isinstance(refused, Discarded):
                        return refused
                whole = self._assembly.add(frame)
                if whole is not None:
                    return whole
            elif isinstance(frame, Discarded):
                if frame.rule == "SABC-131":
                    self._assembly.forget(self._decoder.given_up())
                return frame
            else:
                return session.receive(frame)
        self._frames = []
        self._unread = []
        return None

    def send(self, frame: Frame) -> list[bytes]:
        """The bytes of a frame, or of each frame of a long message. Raises ``LocalProtocolError`` for what is wrong."""
        first = encode(frame)
        out = [first]
        if isinstance(frame, Message):
            if self._frame_size and len(first) > self._frame_size:
                with contextlib.suppress(LocalProtocolError):  # its headers alone fill a frame: it is sent in one
                    out = [encode(piece) for piece in split(frame, self._frame_size)]
            if self._max_sent:
                size = sum([len(piece) for piece in out])
                if size > self._max_sent:
                    reason = f"the message has {size} bytes, more than the {self._max_sent} that the other side takes"
                    raise LocalProtocolError(reason, rule="SABC-136")
        self._session.send(frame)
        return out

    def reply(self, refused: Discarded | RemoteProtocolError) -> list[bytes]:
        """The ERROR that answers what broke a rule; nothing if there is no answer, or none may be sent now."""
        session = self._session
        answer = refused.reply
        if not isinstance(answer, Error) or (session.side, session.state, ERROR) not in SEND:
            return []
        return [encode(answer)]

    def close(self, code: str = "", reason: str = "") -> list[bytes]:
        """End the session. Returns an ERROR with this code, if there is one, and DISCONNECTING if it was open."""
        session = self._session
        out: list[bytes] = []
        if code and session.state is CONNECTING and session.side is S:
            out.append(encode(session.reject(code, reason)))
        elif code and (session.side, session.state, ERROR) in SEND:
            out.append(encode(error_reply(code, reason, session.session_id if self.answers else None)))
        last = session.expire()
        if last is not None:
            out.append(encode(last))
        return out

    def time_out(self) -> list[bytes]:
        """SABC-101: end the session because the other side took too long, for its CONNECT or to send anything."""
        return self.close(TOO_SLOW, IDLE if self.answers else NO_CONNECT)

    def finish(self) -> list[Discarded]:
        """The transport has ended. Returns the frame that was cut, if there is one."""
        cut: list[Discarded] = []
        if self._session.state is not CLOSED and self._broken is None:
            with contextlib.suppress(RemoteProtocolError):  # the connection has ended anyway
                cut = [frame for frame in self._decoder.finish() if isinstance(frame, Discarded)]
        self._session.state = CLOSED
        return cut

    def _decode(self, data: bytes) -> None:
        try:
            self._frames = self._decoder.feed(data)
        except RemoteProtocolError as error:
            self._frames = cast("list[Frame]", error.frames)
            self._broken = error


def _decoder(
    session_id: str | None, max_message: int, max_head: int, max_headers: int, max_unfinished: int, *, messages: bool
) -> Decoder | MessageDecoder:
    if messages:
        return MessageDecoder(
            session_id=session_id,
            max_message=max_message,
            max_head=max_head,
            max_headers=max_headers,
            max_unfinished=max_unfinished,
        )
    return Decoder(
        session_id=session_id,
        max_message=max_message,
        max_head=max_head,
        max_headers=max_headers,
        max_unfinished=max_unfinished,
    )
