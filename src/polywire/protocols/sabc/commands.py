"""sABC's six commands as values, one class each.

Reserved headers are fields; ``headers`` holds the application's, as (key, value) pairs in their order on the wire.
"""

from typing import ClassVar, Final, final

from mypy_extensions import mypyc_attr

from polywire.protocols.sabc.headers import MESSAGE_ID, MSG_ID, TRUNCATED, Header, header, is_yes
from polywire.wire.frame import Frame


@final
@mypyc_attr(acyclic=True)
class Connect(Frame):
    """A client asks for a session."""

    __match_args__: ClassVar[tuple[str, ...]] = ("client_id", "client_passcode", "headers")

    def __init__(self, client_id: str, client_passcode: str | None = None, headers: tuple[Header, ...] = ()) -> None:
        self.client_id: Final = client_id
        self.client_passcode: Final = client_passcode
        self.headers: Final = headers


@final
@mypyc_attr(acyclic=True)
class Connected(Frame):
    """The server opens the session. ``session_expiry``: seconds since 1970 up to which it is valid."""

    __match_args__: ClassVar[tuple[str, ...]] = ("session_id", "session_expiry", "headers")

    def __init__(self, session_id: str, session_expiry: int | None = None, headers: tuple[Header, ...] = ()) -> None:
        self.session_id: Final = session_id
        self.session_expiry: Final = session_expiry
        self.headers: Final = headers


@final
@mypyc_attr(acyclic=True)
class Disconnect(Frame):
    """A client asks the server to end the session once its messages are worked off."""

    __match_args__: ClassVar[tuple[str, ...]] = ("session_id", "headers")

    def __init__(self, session_id: str, headers: tuple[Header, ...] = ()) -> None:
        self.session_id: Final = session_id
        self.headers: Final = headers


@final
@mypyc_attr(acyclic=True)
class Disconnecting(Frame):
    """Either side ends the session here and now."""

    __match_args__: ClassVar[tuple[str, ...]] = ("session_id", "headers")

    def __init__(self, session_id: str, headers: tuple[Header, ...] = ()) -> None:
        self.session_id: Final = session_id
        self.headers: Final = headers


@final
@mypyc_attr(acyclic=True)
class Message(Frame):
    """One frame of a message. With ``more`` others follow; without, it has the null portion and ends the message.

    ``body`` is what stands on the wire: base64 is undone by ``Assembly``, when the message is whole.
    """

    __match_args__: ClassVar[tuple[str, ...]] = (
        "session_id",
        "msg_id",
        "body",
        "headers",
        "ref_msg_id",
        "send_only",
        "more",
    )

    def __init__(
        self,
        session_id: str,
        msg_id: str | None = None,
        body: bytes = b"",
        headers: tuple[Header, ...] = (),
        ref_msg_id: str | None = None,
        send_only: bool = False,
        more: bool = False,
    ) -> None:
        self.session_id: Final = session_id
        self.msg_id: Final = msg_id
        self.body: Final = body
        self.headers: Final = headers
        self.ref_msg_id: Final = ref_msg_id
        self.send_only: Final = send_only
        self.more: Final = more

    @property
    def ended(self) -> bool:
        """Whether it has the null portion, and so ends its message."""
        return not self.more

    def key(self) -> str:
        """What joins the frames of one message: its msg-id, or its ref-msg-id, which is another name (SABC-69)."""
        if self.msg_id is not None:
            return "m" + self.msg_id
        return "r" + (self.ref_msg_id or "")

    @property
    def truncated(self) -> bool:
        """SABC-103: whether the message was cut at the size limit."""
        return is_yes(header(self.headers, TRUNCATED))


@final
@mypyc_attr(acyclic=True)
class Error(Frame):
    """Something went wrong: a code, a description in the body, and the message it is about where there is one.

    On an ERROR any reserved header may stand (SABC-66); those that are not fields here are among ``headers``.
    """

    __match_args__: ClassVar[tuple[str, ...]] = ("error_code", "body", "session_id", "ref_msg_id", "headers")

    def __init__(
        self,
        error_code: str | None,
        body: bytes = b"",
        session_id: str | None = None,
        ref_msg_id: str | None = None,
        headers: tuple[Header, ...] = (),
    ) -> None:
        self.error_code: Final = error_code
        self.body: Final = body
        self.session_id: Final = session_id
        self.ref_msg_id: Final = ref_msg_id
        self.headers: Final = headers

    @property
    def about(self) -> str | None:
        """SABC-134: the id of the receiver's message that it is about, or None where it names none."""
        if self.ref_msg_id is not None:
            return self.ref_msg_id
        msg_id = header(self.headers, MSG_ID)
        return header(self.headers, MESSAGE_ID) if msg_id is None else msg_id
