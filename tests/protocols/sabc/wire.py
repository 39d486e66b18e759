"""Short ways to write what stands on the wire, shared by the tests of sABC."""

from polywire.protocols.sabc import Assembly, Decoder, Error, Message, Whole
from polywire.wire.frame import Discarded, Frame

SESSION = "NaTPOgp1QUuB6Gm5tAdcSw"


def wire(text: str) -> bytes:
    """A transcript as bytes: LF as CR LF, ``^@`` as NUL."""
    return text.replace("\n", "\r\n").replace("^@", "\0").encode()


def message(*headers: str, body: str = "", end: str = "\n\n^@", session: str = SESSION) -> bytes:
    """A MESSAGE frame of the session."""
    lines = ["MESSAGE", f"session-id::{session}", *headers]
    return wire("\n".join(lines) + "\n\n" + body + end)


def server(**limits: int) -> Decoder:
    """A server's decoder, whose session is open."""
    decoder = Decoder(session_id=SESSION, **limits)
    decoder.feed(wire("CONNECT\nclient-id::me\n\n"))
    return decoder


def octetwise(decoder: Decoder, data: bytes) -> list[Frame]:
    """What the decoder makes of the data one byte at a time."""
    return [frame for at in range(len(data)) for frame in decoder.feed(data[at : at + 1])]


def code_of(frame: object) -> str | None:
    """The error code a discarded frame is answered with."""
    assert isinstance(frame, Discarded)
    if frame.reply is None:
        return None
    assert isinstance(frame.reply, Error)
    return frame.reply.error_code


def whole(frames: list[Frame]) -> list[Whole | Discarded]:
    """The messages that the frames make."""
    assembly = Assembly()
    made = [assembly.add(frame) for frame in frames if isinstance(frame, Message)]
    return [item for item in made if item is not None]
