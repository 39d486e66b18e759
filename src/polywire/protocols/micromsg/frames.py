"""MicroMsg2's frames and handshake messages: bytes to frames and back.

A connection begins with handshake messages (MICROMSG-101), two from the client and one from the server; frames follow,
each beginning with one byte of flags. The decoder knows from its role how many handshake messages to expect, so frames
may follow the last one in the same chunk. A message that came in CONTINUED frames is returned as one. Any violation
ends the connection; the error has the ERROR frame to answer with.
"""

from typing import ClassVar, Final, final

from librt.strings import BytesWriter, read_i32_be, write_i16_be, write_i32_be
from mypy_extensions import i16, i32, i64, mypyc_attr

from polywire.protocols.micromsg.errors import (
    BAD_FRAME,
    BAD_HANDSHAKE,
    BAD_VERSION,
    ENDS_CONNECTION,
    TOO_LARGE,
    LocalProtocolError,
    MalformedError,
    RemoteProtocolError,
)
from polywire.protocols.micromsg.text import (
    MAX_PROPERTIES,
    NamedExtension,
    Pairs,
    properties_problem,
    read_command,
    read_extensions,
    shown,
    write_command,
    write_extensions,
)
from polywire.wire.frame import Assembler, Frame, Role

COMMAND: Final = 1  # MICROMSG-37
EXTENSION: Final = 2  # MICROMSG-38
ERROR: Final = 4  # MICROMSG-39
LARGE_PAYLOAD: Final = 8  # MICROMSG-40
CONTINUED: Final = 16  # MICROMSG-41
KINDS: Final = 7
MESSAGE_FLAGS: Final = 24
NO_FLAGS: Final = 0xE0  # MICROMSG-95

MAJOR: Final = 1  # MICROMSG-24
MINOR: Final = 0
SERVER: Final = "server"
CLIENT: Final = "client"

SPLIT: Final = 1_048_576  # MICROMSG-89
MAX_SEQUENCE: Final = 65535  # MICROMSG-47
MAX_LENGTH: Final = 0xFFFF_FFFF
LONGEST_DELAY: Final = 0xFFFF_FFFF
"""The most milliseconds that a nack can carry."""

MAX_MESSAGE: Final = 16 * 1024 * 1024
MAX_CONTROL: Final = 64 * 1024
MAX_HANDSHAKE: Final = 8 * 1024


@final
@mypyc_attr(acyclic=True)
class Message(Frame):
    """A MESSAGE or, from a client, SEND: one whole payload, however many frames carry it.

    ``properties`` is their text; ``properties.read`` makes a dictionary of it.
    """

    __match_args__: ClassVar[tuple[str, ...]] = ("sequence", "destination", "payload", "properties")

    def __init__(self, sequence: int, destination: str, payload: bytes, properties: str = "") -> None:
        self.sequence: Final = sequence
        self.destination: Final = destination
        self.payload: Final = payload
        self.properties: Final = properties


@final
@mypyc_attr(acyclic=True)
class Command(Frame):
    """A COMMAND with its arguments in order, values without escapes."""

    __match_args__: ClassVar[tuple[str, ...]] = ("name", "arguments")

    def __init__(self, name: str, arguments: Pairs = ()) -> None:
        self.name: Final = name
        self.arguments: Final = arguments

    def value(self, key: str) -> str | None:
        """The value of an argument, None if there is no such argument."""
        return _value(self.arguments, key)


@final
@mypyc_attr(acyclic=True)
class Extension(Frame):
    """An EXTENSION frame. ``number`` is the place of its extension in the final handshake message, from one."""

    __match_args__: ClassVar[tuple[str, ...]] = ("number", "payload")

    def __init__(self, number: int, payload: bytes) -> None:
        self.number: Final = number
        self.payload: Final = payload


@final
@mypyc_attr(acyclic=True)
class Error(Frame):
    """An ERROR with its arguments in order; ``errors.ends_connection`` says what comes after it."""

    __match_args__: ClassVar[tuple[str, ...]] = ("name", "arguments")

    def __init__(self, name: str, arguments: Pairs = ()) -> None:
        self.name: Final = name
        self.arguments: Final = arguments

    def value(self, key: str) -> str | None:
        """The value of an argument, None if there is no such argument."""
        return _value(self.arguments, key)


@final
@mypyc_attr(acyclic=True)
class Handshake(Frame):
    """A handshake message: the client's offer, the server's reply or the client's final message."""

    __match_args__: ClassVar[tuple[str, ...]] = ("identity", "required", "optional", "major", "minor", "flags")

    def __init__(
        self,
        identity: str,
        required: tuple[NamedExtension, ...] = (),
        optional: tuple[NamedExtension, ...] = (),
        major: int = MAJOR,
        minor: int = MINOR,
        flags: int = 0,
    ) -> None:
        self.identity: Final = identity
        self.required: Final = required
        self.optional: Final = optional
        self.major: Final = major
        self.minor: Final = minor
        self.flags: Final = flags


def role_of(role: Role | str) -> Role:
    """The role, which may be named by ``SERVER`` or ``CLIENT``. Raises ``LocalProtocolError`` for any other name."""
    try:
        return Role(role)
    except ValueError as error:
        raise LocalProtocolError(f"{role!r} is neither {SERVER!r} nor {CLIENT!r}", rule="MICROMSG-02") from error


def _value(arguments: Pairs, key: str) -> str | None:
    for name, value in arguments:
        if name == key:
            return value
    return None


@final
class Decoder:
    """Turns what one side receives into frames. ``role`` is that side.

    ``established``: there is no handshake, frames come from the start. ``max_message``: bytes of a message's payload,
    all its frames together. ``max_control``: bytes of the payload of any other frame. ``max_properties``: bytes of a
    message's properties. ``max_handshake``: bytes of one handshake message.
    """

    def __init__(
        self,
        role: Role | str = Role.SERVER,
        *,
        established: bool = False,
        max_message: int = MAX_MESSAGE,
        max_control: int = MAX_CONTROL,
        max_properties: int = MAX_PROPERTIES,
        max_handshake: int = MAX_HANDSHAKE,
    ) -> None:
        self._server = role_of(role) is Role.SERVER
        self._handshakes: i64 = 0
        if not established:
            self._handshakes = 2 if self._server else 1
        self._max_message: i64 = max_message
        self._max_control: i64 = max_control
        self._max_properties: i64 = max_properties
        self._max_handshake: i64 = max_handshake
        self._bytes = Assembler()
        self._want: i64 = 0
        self._failure: RemoteProtocolError | None = None
        # The message whose CONTINUED frames are being joined: its first frame, without payload, and the payload.
        self._begun: Message | None = None
        self._joined = BytesWriter()

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that ``data`` completes, in order. Raises ``RemoteProtocolError``."""
        if self._failure is not None:
            raise _again(self._failure)
        frames: list[Frame] = []
        chunk = self._bytes.take(data)
        if chunk is None:
            return frames
        end: i64 = len(chunk)
        pos: i64 = 0
        max_message = self._max_message
        max_properties = self._max_properties
        self._want = 1
        while pos < end:
            flags: i64 = chunk[pos]
            if self._handshakes or flags & ~MESSAGE_FLAGS:
                following = self._other(frames, chunk, pos, end)
                if following < 0:
                    break
                pos = following
                continue
            # Want the least that allows another check: an error must not wait for more.
            if pos + 4 > end:
                self._want = 4
                break
            name_end: i64 = pos + 4 + i64(chunk[pos + 3])
            text: i64 = name_end + 2
            if text > end:
                self._want = text - pos
                break
            text_length: i64 = (i64(chunk[name_end]) << 8) | i64(chunk[name_end + 1])
            if text_length > max_properties:
                raise self._too_large(frames, name_end, "properties", "MICROMSG-153", text_length, max_properties)
            text_end: i64 = text + text_length
            width: i64 = 4 if flags & LARGE_PAYLOAD else 1
            body: i64 = text_end + width
            if body > end:
                self._want = body - pos
                break
            length: i64 = chunk[text_end] if width == 1 else i64(read_i32_be(chunk, text_end)) & MAX_LENGTH
            if self._begun is None:
                if length > max_message:
                    raise self._too_large(frames, text_end, "message", "MICROMSG-151", length, max_message)
            elif length + i64(len(self._joined)) > max_message:
                total = length + i64(len(self._joined))
                raise self._too_large(frames, text_end, "message", "MICROMSG-151", total, max_message)
            following = body + length
            if following > end:
                self._want = following - pos
                break
            sequence: i64 = (i64(chunk[pos + 1]) << 8) | i64(chunk[pos + 2])
            if sequence == 0:
                raise self._bad_frame(frames, pos + 1, "MICROMSG-117", "the sequence number is 0")
            name = chunk[pos + 4 : name_end]
            try:
                destination = name.decode()
            except UnicodeDecodeError as error:
                raise self._bad_frame(
                    frames, pos + 4 + error.start, "MICROMSG-160", "the destination is not UTF-8"
                ) from None
            attached = ""
            if text_length:
                wrong = properties_problem(chunk, text, text_end)
                if wrong is not None:
                    raise self._bad_frame(frames, text + i64(wrong.at), wrong.rule, wrong.reason)
                attached = chunk[text:text_end].decode("ascii")
            payload = chunk[body:following]
            if flags & CONTINUED == 0 and self._begun is None:
                frames.append(Message(sequence, destination, payload, attached))
            else:
                self._join(frames, pos, flags, Message(sequence, destination, payload, attached))
            pos = following
            self._want = 1
        self._bytes.keep(chunk, pos, self._want)
        return frames

    def pending(self) -> int:
        """How many bytes are held: of an unfinished frame, and of a message whose last frame has not arrived."""
        return self._bytes.pending() + len(self._joined)

    def _join(self, frames: list[Frame], pos: i64, flags: i64, part: Message) -> None:
        """Add a frame to the CONTINUED message it belongs to, and give the message with its last frame."""
        begun = self._begun
        if begun is None:
            self._begun = begun = Message(part.sequence, part.destination, b"", part.properties)
        elif part.sequence != begun.sequence:
            reason = f"message {part.sequence} begins before the CONTINUED message {begun.sequence} has ended"
            raise self._bad_frame(frames, pos + 1, "MICROMSG-119", reason)
        elif part.destination != begun.destination:
            reason = f"a frame of the CONTINUED message {begun.sequence} has another destination than its first"
            raise self._bad_frame(frames, pos + 3, "MICROMSG-120", reason)
        elif part.properties:
            reason = f"a frame of the CONTINUED message {begun.sequence} that is not its first has properties"
            at = pos + 4 + i64(len(part.destination.encode()))
            raise self._bad_frame(frames, at, "MICROMSG-121", reason)
        self._joined.write(part.payload)
        if flags & CONTINUED == 0:
            payload = self._joined.getvalue()
            self._joined = BytesWriter()
            self._begun = None
            frames.append(Message(begun.sequence, begun.destination, payload, begun.properties))

    def _other(self, frames: list[Frame], chunk: bytes, pos: i64, end: i64) -> i64:
        """Read what is not a message, and return where the next frame begins, or -1 if it is not complete."""
        flags: i64 = chunk[pos]
        if self._handshakes:
            # MICROMSG-159: no answer to version 1 has version 4 or 12, so there these begin an ERROR.
            offer = self._handshakes == 2
            if offer or flags & ~LARGE_PAYLOAD != ERROR:
                return self._handshake(frames, chunk, pos, end)
        kind = flags & KINDS
        if flags & NO_FLAGS:
            raise self._bad_frame(frames, pos, "MICROMSG-95", f"the flags {flags} contain one that is not defined")
        if kind not in {COMMAND, EXTENSION, ERROR}:
            reason = f"the flags {flags} make it more than one of COMMAND, EXTENSION and ERROR"
            raise self._bad_frame(frames, pos, "MICROMSG-94", reason)
        if flags & CONTINUED:
            raise self._bad_frame(frames, pos, "MICROMSG-96", f"the flags {flags} continue what is not a message")
        width: i64 = 4 if flags & LARGE_PAYLOAD else 1
        head: i64 = pos + 2 if kind == EXTENSION else pos + 1
        body: i64 = head + width
        if body > end:
            self._want = body - pos
            return -1
        if kind == EXTENSION and chunk[pos + 1] == 0:
            raise self._bad_frame(frames, pos + 1, "MICROMSG-167", "extension 0: numbers begin with 1")
        length: i64 = chunk[head] if width == 1 else i64(read_i32_be(chunk, head)) & MAX_LENGTH
        if length > self._max_control:
            raise self._too_large(frames, head, "payload", "MICROMSG-152", length, self._max_control)
        following = body + length
        if following > end:
            self._want = following - pos
            return -1
        payload = chunk[body:following]
        if kind == EXTENSION:
            frames.append(Extension(int(chunk[pos + 1]), payload))
        else:
            try:
                name, arguments = read_command(payload)
            except MalformedError as error:
                raise self._bad_frame(frames, body + i64(error.at), error.rule, error.reason) from None
            frames.append(Command(name, arguments) if kind == COMMAND else Error(name, arguments))
        self._want = 1
        return following

    def _handshake(self, frames: list[Frame], chunk: bytes, pos: i64, end: i64) -> i64:
        """Read a handshake message, and return where it ends, or -1 if it is not complete."""
        major: i64 = chunk[pos]
        if major != MAJOR:
            if self._server and self._handshakes == 1:
                reason = f"expected a final handshake message, which does not begin with byte {major}"
                raise self._failed(frames, pos, "MICROMSG-105", reason, BAD_HANDSHAKE)
            reason = f"major version {major}, only {MAJOR} is supported"
            raise self._failed(frames, pos, "MICROMSG-108", reason, BAD_VERSION, (("version", f"{MAJOR}.{MINOR}"),))
        if pos + 4 > end:
            self._want = 4
            return -1
        required: i64 = pos + 6 + i64(chunk[pos + 3])
        self._check_handshake(frames, pos, pos + 3, required + 2)
        if required > end:
            self._want = required - pos
            return -1
        optional: i64 = required + ((i64(chunk[required - 2]) << 8) | i64(chunk[required - 1])) + 2
        self._check_handshake(frames, pos, required - 2, optional)
        if optional > end:
            self._want = optional - pos
            return -1
        following: i64 = optional + ((i64(chunk[optional - 2]) << 8) | i64(chunk[optional - 1]))
        self._check_handshake(frames, pos, optional - 2, following)
        if following > end:
            self._want = following - pos
            return -1
        at = pos + 4
        try:
            identity = chunk[at : required - 2].decode("ascii")
        except UnicodeDecodeError as error:
            at += error.start
            raise self._failed(frames, at, "MICROMSG-26", "the identity is not ASCII", BAD_HANDSHAKE) from None
        try:
            at = required
            needed = read_extensions(chunk[required : optional - 2])
            at = optional
            wanted = read_extensions(chunk[optional:following])
        except MalformedError as error:
            raise self._failed(frames, at + i64(error.at), error.rule, error.reason, BAD_HANDSHAKE) from None
        frames.append(Handshake(identity, needed, wanted, MAJOR, int(chunk[pos + 1]), int(chunk[pos + 2])))
        self._handshakes -= 1
        self._want = 1
        return following

    def _check_handshake(self, frames: list[Frame], pos: i64, at: i64, following: i64) -> None:
        """Refuse a handshake message that goes to ``following`` because of the length at ``at``, if it is too long."""
        if following - pos > self._max_handshake:
            raise self._too_large(frames, at, "handshake message", "MICROMSG-154", following - pos, self._max_handshake)

    def _too_large(
        self, frames: list[Frame], pos: i64, what: str, rule: str, size: i64, limit: i64
    ) -> RemoteProtocolError:
        reason = f"{what} of {size} bytes, allowed are {limit}"
        error = self._failed(frames, pos, rule, reason, TOO_LARGE, (("limit", str(limit)),))
        if rule == "MICROMSG-151":
            error.oversize = int(size)
        return error

    def _bad_frame(self, frames: list[Frame], pos: i64, rule: str, reason: str) -> RemoteProtocolError:
        return self._failed(frames, pos, rule, reason, BAD_FRAME)

    def _failed(
        self, frames: list[Frame], pos: i64, rule: str, reason: str, name: str, arguments: Pairs = ()
    ) -> RemoteProtocolError:
        """The error to raise. The decoder keeps it, and drops what it held."""
        reply = Error(name, (*arguments, ("reason", reason)))
        position = int(self._bytes.offset + pos)
        error = RemoteProtocolError(reason, rule=rule, position=position, reply=reply, frames=frames)
        self._failure = _again(error)
        self._begun = None
        self._joined = BytesWriter()
        return error


def _again(error: RemoteProtocolError) -> RemoteProtocolError:
    """The same error without frames, and without the traceback of the last time it was raised."""
    return RemoteProtocolError(error.reason, rule=error.rule, position=error.position, reply=error.reply)


def encode(frame: Frame) -> bytes:
    """The bytes of a frame; of a message with more than 1 MiB, all its frames. Raises ``LocalProtocolError``."""
    if isinstance(frame, Message):
        return _message(frame)
    if isinstance(frame, Extension):
        if not 1 <= frame.number <= 255:
            raise LocalProtocolError(f"extension number {frame.number}, allowed are 1 to 255", rule="MICROMSG-61")
        return _control(EXTENSION, frame.number, frame.payload)
    if isinstance(frame, Command):
        return _control(COMMAND, -1, write_command(frame.name, frame.arguments))
    if isinstance(frame, Error):
        if frame.name not in ENDS_CONNECTION:
            raise LocalProtocolError(f"{shown(frame.name)} is not an error's name", rule="MICROMSG-99")
        return _control(ERROR, -1, write_command(frame.name, frame.arguments))
    if isinstance(frame, Handshake):
        return _handshake(frame)
    raise LocalProtocolError(f"{type(frame).__name__} is not a frame of MicroMsg2", rule="MICROMSG-35")


def renumbered(octets: bytes, sequence: int) -> bytes:
    """An encoded message with another sequence number in all its frames (MICROMSG-175).

    Each connection has its own numbers, so a message for many of them is encoded once and numbered for each.
    """
    if not 1 <= sequence <= MAX_SEQUENCE:
        raise LocalProtocolError(f"sequence number {sequence}, allowed are 1 to {MAX_SEQUENCE}", rule="MICROMSG-117")
    out = BytesWriter()
    end: i64 = len(octets)
    pos: i64 = 0
    while pos < end:
        flags: i64 = octets[pos]
        text: i64 = pos + 6 + i64(octets[pos + 3])
        body: i64 = text + ((i64(octets[text - 2]) << 8) | i64(octets[text - 1]))
        if flags & LARGE_PAYLOAD:
            following = body + 4 + (i64(read_i32_be(octets, body)) & MAX_LENGTH)
        else:
            following = body + 1 + i64(octets[body])
        out.append(flags)
        _write_short(out, sequence)
        out.write(octets[pos + 3 : following])
        pos = following
    return out.getvalue()


def ack(number: int, sequence: int) -> Extension:
    """MICROMSG-67: the frame that acknowledges a message; ``number`` is that of the ack extension."""
    return Extension(number, sequence.to_bytes(2, "big"))


def read_ack(payload: bytes) -> int | Error:
    """The sequence number in an ack, or the ERROR to answer with."""
    if len(payload) != 2:
        return Error(BAD_FRAME, (("reason", f"an ack has a payload of 2 bytes, not of {len(payload)}"),))
    return int.from_bytes(payload, "big")


def nack(number: int, sequence: int, delay: float, reason: str) -> Extension:
    """MICROMSG-196: the frame that rejects a message; ``number`` is that of ``x-nack``."""
    milliseconds = min(max(0, round(delay * 1000)), LONGEST_DELAY)
    payload = sequence.to_bytes(2, "big") + milliseconds.to_bytes(4, "big")
    return Extension(number, payload + reason.encode(errors="replace"))


def read_nack(payload: bytes) -> tuple[int, float, str] | Error:
    """The sequence number, the delay in seconds and the reason in a nack, or the ERROR to answer with."""
    if len(payload) < 6:
        return Error(BAD_FRAME, (("reason", f"a nack has a payload of at least 6 bytes, not of {len(payload)}"),))
    delay = int.from_bytes(payload[2:6], "big") / 1000
    return int.from_bytes(payload[:2], "big"), delay, payload[6:].decode(errors="replace")


def _message(message: Message) -> bytes:
    sequence: i64 = message.sequence
    if not 1 <= sequence <= MAX_SEQUENCE:
        raise LocalProtocolError(f"sequence number {sequence}, allowed are 1 to {MAX_SEQUENCE}", rule="MICROMSG-117")
    try:
        name = message.destination.encode()
    except UnicodeEncodeError as error:
        reason = f"the destination {shown(message.destination)} can't be written as UTF-8"
        raise LocalProtocolError(reason, rule="MICROMSG-160") from error
    name_length: i64 = len(name)
    if name_length > 255:
        raise LocalProtocolError(f"the destination has {name_length} bytes, allowed are 255", rule="MICROMSG-48")
    text = b""
    if message.properties:
        text = _properties(message.properties)
    payload = message.payload
    end: i64 = len(payload)
    out = BytesWriter()
    pos: i64 = 0
    while True:
        length: i64 = end - pos
        flags: i64 = 0
        if length > SPLIT:
            length = SPLIT
            flags = CONTINUED
        if length > 255:
            flags |= LARGE_PAYLOAD
        out.append(flags)
        _write_short(out, sequence)
        out.append(name_length)
        out.write(name)
        _write_short(out, len(text))
        out.write(text)
        if length > 255:
            write_i32_be(out, i32(length))
        else:
            out.append(length)
        if length == end:
            out.write(payload)
        else:
            out.write(payload[pos : pos + length])
        pos += length
        if flags & CONTINUED == 0:
            return out.getvalue()
        text = b""  # MICROMSG-121


def _properties(text: str) -> bytes:
    try:
        data = text.encode("ascii")
    except UnicodeEncodeError as error:
        raise LocalProtocolError(f"the properties are not ASCII at {error.start}", rule="MICROMSG-161") from error
    if len(data) > MAX_PROPERTIES:
        reason = f"the properties have {len(data)} bytes, allowed are {MAX_PROPERTIES}"
        raise LocalProtocolError(reason, rule="MICROMSG-52")
    wrong = properties_problem(data, 0, len(data))
    if wrong is not None:
        raise LocalProtocolError(wrong.reason, rule=wrong.rule) from wrong
    return data


def _control(kind: i64, number: i64, payload: bytes) -> bytes:
    length: i64 = len(payload)
    if length > MAX_LENGTH:
        raise LocalProtocolError(f"the payload has {length} bytes, allowed are {MAX_LENGTH}", rule="MICROMSG-40")
    out = BytesWriter()
    out.append(kind | LARGE_PAYLOAD if length > 255 else kind)
    if number >= 0:
        out.append(number)
    if length > 255:
        write_i32_be(out, i32(length if length <= 0x7FFF_FFFF else length - 0x1_0000_0000))
    else:
        out.append(length)
    out.write(payload)
    return out.getvalue()


def _handshake(message: Handshake) -> bytes:
    if message.major != MAJOR or not 0 <= message.minor <= 255 or not 0 <= message.flags <= 255:
        reason = f"version {message.major}.{message.minor} with flags {message.flags} can't be written, {MAJOR}.x can"
        raise LocalProtocolError(reason, rule="MICROMSG-23")
    identity = message.identity
    if not identity.isascii() or len(identity) > 255:
        raise LocalProtocolError(f"{shown(identity)} is not an identity: at most 255 ASCII", rule="MICROMSG-26")
    out = BytesWriter()
    out.append(message.major)
    out.append(message.minor)
    out.append(message.flags)
    out.append(len(identity))
    out.write(identity.encode("ascii"))
    for listed in (message.required, message.optional):
        text = write_extensions(listed)
        if len(text) > 65535:
            raise LocalProtocolError(f"extensions of {len(text)} bytes, allowed are 65535", rule="MICROMSG-23")
        _write_short(out, len(text))
        out.write(text)
    return out.getvalue()


def _write_short(out: BytesWriter, number: i64) -> None:
    write_i16_be(out, i16(number if number <= 0x7FFF else number - 0x1_0000))
