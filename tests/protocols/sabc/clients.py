"""sABC clients on a site without sockets: what they send as text, what they get as frames."""

from collections.abc import Callable

from polywire.hub.client import Client
from polywire.hub.hub import Hub
from polywire.hub.peer import Limits
from polywire.protocols.sabc import Connected, Decoder, Error, Message
from polywire.protocols.sabc.headers import header
from polywire.protocols.sabc.session import SabcSession
from polywire.wire.frame import Frame
from tests.protocols.sabc.wire import wire
from tests.sessions import Site, Wire


def stream(hub: Hub, client: Client, peer: Wire, limits: Limits) -> SabcSession:
    """A session on a byte stream."""
    return SabcSession(hub, client, peer, limits)


def messages(hub: Hub, client: Client, peer: Wire, limits: Limits) -> SabcSession:
    """A session on a WebSocket."""
    return SabcSession(hub, client, peer, limits, messages=True)


class Speaker:
    """A client: ``ask`` sends a message, ``got`` is what came since the last look."""

    def __init__(
        self,
        site: Site,
        name: str = "me",
        passcode: str | None = None,
        *,
        connect: bool = True,
        make: Callable[[Hub, Client, Wire, Limits], SabcSession] = stream,
        limits: Limits | None = None,
        cap: int = 1 << 22,
    ) -> None:
        self.site = site
        self.wire = site.connect("sabc", make, limits=limits, cap=cap)
        self.decoder = Decoder()
        self.session = ""
        self.expiry: int | None = None
        self.taken = b""
        if connect:
            self.connect(name, passcode)

    @property
    def sabc(self) -> SabcSession:
        session = self.wire.session
        assert isinstance(session, SabcSession)
        return session

    def connect(self, name: str = "me", passcode: str | None = None) -> None:
        secret = "" if passcode is None else f"\nclient-passcode::{passcode}"
        self.wire.feed(wire(f"CONNECT\nclient-id::{name}{secret}\n\n^@"))
        frames = self.got()
        assert isinstance(frames[0], Connected), frames
        self.session = frames[0].session_id
        self.expiry = frames[0].session_expiry

    def raw(self, text: str) -> None:
        """Send frames as they stand; ``@@`` is the session id."""
        self.wire.feed(wire(text.replace("@@", self.session)))

    def ask(self, *headers: str, body: str = "") -> list[Frame]:
        """Send a whole message, and see what that brings."""
        self.raw("\n".join(["MESSAGE", "session-id::@@", *headers]) + f"\n\n{body}\n\n^@")
        return self.got()

    def got(self) -> list[Frame]:
        """The frames that came since the last look; their bytes are in ``taken``."""
        self.taken = self.wire.taken()
        return self.decoder.feed(self.taken)

    def heard(self) -> str:
        """What came since the last look, readable: LF for CR LF, ``^@`` for NUL, ``@@`` for the session id."""
        self.taken = self.wire.taken()
        return self.taken.decode().replace("\r\n", "\n").replace("\0", "^@").replace(self.session or "\0\0", "@@")

    def messages(self) -> list[Message]:
        return [frame for frame in self.got() if isinstance(frame, Message)]


def is_ok(frames: list[Frame], ref: str) -> bool:
    """Whether the frames are one OK for this message."""
    return (
        len(frames) == 1 and isinstance(frames[0], Message) and (frames[0].ref_msg_id, frames[0].body) == (ref, b"OK")
    )


def error(frames: list[Frame]) -> tuple[str | None, str | None]:
    """Code and ref-msg-id of the one ERROR there is."""
    assert len(frames) == 1, frames
    assert isinstance(frames[0], Error), frames
    return frames[0].error_code, frames[0].ref_msg_id


def value(message: Message, key: str) -> str | None:
    """The value of a header."""
    return header(message.headers, key)
