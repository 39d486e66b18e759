"""A session's life as tables: which command may come, or be sent, in which state, and what it leads to.

The tables are data: ``RECEIVE`` and ``SEND`` map (side, state, command) to the next state, or to the error code and
rule of the refusal. ``Session`` walks them. What a decoder has already refused never gets here.
"""

from enum import Enum
from secrets import token_urlsafe
from typing import Final

from polywire.protocols.sabc.errors import CONFLICT, DRAINING, MALFORMED, UNAUTHORIZED, LocalProtocolError
from polywire.protocols.sabc.frames import Connect, Connected, Disconnect, Disconnecting, Error, Message, error_reply
from polywire.protocols.sabc.headers import (
    CONNECT,
    CONNECTED,
    DISCONNECT,
    DISCONNECTING,
    ERROR,
    MESSAGE,
)
from polywire.wire.frame import Discarded, Frame


class Side(Enum):
    """Which end of the connection this is."""

    SERVER = "server"
    CLIENT = "client"


class State(Enum):
    """Where a session stands."""

    NEW = "new"  # no CONNECT yet
    CONNECTING = "connecting"  # CONNECT came or was sent, its answer is due
    OPEN = "open"
    LEAVING = "leaving"  # DISCONNECT came or was sent
    CLOSED = "closed"


class Refusal:
    """An answer of the tables: this command is refused here."""

    __slots__ = ("code", "reason", "rule")

    def __init__(self, code: str, rule: str, reason: str) -> None:
        self.code = code
        self.rule = rule
        self.reason = reason


NO_SESSION: Final = Refusal(UNAUTHORIZED, "SABC-90", "there is no session yet: CONNECT comes first")
SERVER_ONLY: Final = Refusal(MALFORMED, "SABC-92", "only a server sends CONNECTED")
CLIENT_ONLY: Final = Refusal(MALFORMED, "SABC-92", "only a client sends CONNECT and DISCONNECT")
TWICE: Final = Refusal(CONFLICT, "SABC-91", "the session is connected already")
LEFT: Final = Refusal(DRAINING, "SABC-102", "after DISCONNECT nothing more is accepted")
OVER: Final = Refusal("", "SABC-42", "the session is over")

S, C = Side.SERVER, Side.CLIENT
NEW, CONNECTING, OPEN, LEAVING, CLOSED = State.NEW, State.CONNECTING, State.OPEN, State.LEAVING, State.CLOSED

RECEIVE: Final[dict[tuple[Side, State, str], State | Refusal]] = {
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
    (C, LEAVING, MESSAGE): LEAVING,  # SABC-111: answers still come
    (C, LEAVING, ERROR): LEAVING,
}
"""What a command that is received does; whatever is not here is ``OVER``."""

SEND: Final[dict[tuple[Side, State, str], State]] = {
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
"""What a command that is sent does; whatever is not here may not be sent."""

SEND_RULES: Final[dict[tuple[Side, str], str]] = {
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
    """SABC-35: an id nobody can guess, 128 random bits in 22 characters."""
    return token_urlsafe(16)


class Session:
    """One session, seen from one side. ``session_id`` of a client is known once CONNECTED has come."""

    def __init__(self, side: Side, session_id: str | None = None) -> None:
        self.side: Final = side
        self.session_id = session_id
        self.state = State.NEW

    def receive(self, frame: Frame) -> Frame:
        """The frame where it may come now, otherwise ``Discarded`` with the ERROR to answer."""
        if isinstance(frame, Discarded):
            return frame
        name = NAMES[type(frame)]
        verdict = RECEIVE.get((self.side, self.state, name), OVER)
        if isinstance(verdict, State):
            if isinstance(frame, Connected):
                self.session_id = frame.session_id
            elif isinstance(frame, Message | Disconnect | Disconnecting) and frame.session_id != self.session_id:
                return self._discarded(frame, Refusal(UNAUTHORIZED, "SABC-90", "the session-id is not this session's"))
            self.state = verdict
            return frame
        return self._discarded(frame, verdict)

    def send(self, frame: Frame) -> Frame:
        """The frame where it may be sent now. Raises ``LocalProtocolError`` where it may not; nothing changes then."""
        name = NAMES.get(type(frame), type(frame).__name__)
        state = SEND.get((self.side, self.state, name))
        if state is None:
            rule = SEND_RULES.get((self.side, name), "SABC-02" if self.state is not State.CLOSED else "SABC-42")
            reason = f"a {self.side.value} can't send {name} when the session is {self.state.value}"
            raise LocalProtocolError(reason, rule=rule)
        if isinstance(frame, Connected) and self.session_id is None:
            self.session_id = frame.session_id
        if isinstance(frame, Connected | Message | Disconnect | Disconnecting) and frame.session_id != self.session_id:
            reason = f"session-id {frame.session_id!r} is not this session's {self.session_id!r}"
            raise LocalProtocolError(reason, rule="SABC-02")
        self.state = state
        return frame

    def reject(self, code: str, reason: str) -> Error:
        """SABC-96: the ERROR that refuses a CONNECT; the session is over, the connection is to be closed."""
        if self.side is not Side.SERVER or self.state is not State.CONNECTING:
            raise LocalProtocolError(
                f"there is no CONNECT to refuse: the session is {self.state.value}", rule="SABC-96"
            )
        self.state = State.CLOSED
        return error_reply(code, reason)

    def expire(self) -> Disconnecting | None:
        """SABC-110: the DISCONNECTING of a session whose time is up, or None where none is open. It is over."""
        was = self.state
        self.state = State.CLOSED
        if self.session_id is None or was not in {State.OPEN, State.LEAVING}:
            return None
        return Disconnecting(self.session_id)

    def _discarded(self, frame: Frame, verdict: Refusal) -> Discarded:
        reply = None
        if verdict.code and not isinstance(frame, Error):
            known = self.session_id if self.state in {State.OPEN, State.LEAVING} else None
            msg_id = frame.msg_id if isinstance(frame, Message) else None
            reply = error_reply(verdict.code, verdict.reason, known, msg_id)
        return Discarded(verdict.rule, verdict.reason, 0, b"", 0, reply)
