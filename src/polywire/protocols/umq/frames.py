"""UMQ's messages: what one WebSocket message says, as frames, and back.

A text message is ``[A<count>:]<command><id>:<payload>`` and controls the protocol; a binary message is an attachment
that a text message announced (UMQ-04, UMQ-02). Messages come whole, so a call of ``feed`` gives one frame, and what
the decoder keeps between calls is only how many attachments are due to whom. Every violation ends the connection.

Numbers are in base 36 with upper-case digits, unsigned, 64 bits (UMQ-08, UMQ-84). Twelve digits always fit a native
integer, so only longer numbers take the slow way.
"""

from collections import deque
from typing import ClassVar, Final, final

from librt.strings import StringWriter
from mypy_extensions import i32, i64, mypyc_attr

from polywire.protocols.umq.errors import (
    MAX_CODE,
    FatalCode,
    LocalProtocolError,
    RemoteProtocolError,
    describe,
    read_error_text,
)
from polywire.wire.frame import Frame

MAX_NUMBER: Final = 0xFFFF_FFFF_FFFF_FFFF  # UMQ-84
SAFE_DIGITS: Final = 12
SPLIT: Final = 36**6
SHORT: Final = 36**11  # what mypyc compares without making an object


MAX_TEXT: Final = 16 * 1024 * 1024
MAX_BINARY: Final = 16 * 1024 * 1024
MAX_UNFINISHED: Final = 1024

COLON: Final = 58

# UMQ-05: the commands, as the characters they are.
ATTACHED: Final = 65  # A
CALLBACK: Final = 66  # B
CALL: Final = 67  # C
TOPIC_CLOSE: Final = 68  # D
CALL_EXCEPTION: Final = 69  # E
FATAL: Final = 70  # F
HELLO: Final = 72  # H
RESULT: Final = 82  # R
SET_ATTRIBUTE: Final = 83  # S
TOPIC_UPDATE: Final = 84  # T
UNSUBSCRIBE: Final = 85  # U
WELCOME: Final = 87  # W
UNSET_ATTRIBUTE: Final = 88  # X
ATTACHMENT_ERROR: Final = 45  # -
NOT_HANDLED: Final = 33  # ! (UMQ-156): what a later revision sends instead of some E; read and never sent

COMMANDS: Final = "-HWFCBRETDUSX"
READ: Final = "-HWFCBRETDUSX!"
WITH_ATTACHMENTS: Final = "HWCRBTS"  # UMQ-85


def digit(char: i32) -> i64:
    """The value of a digit, or -1 for another character, as a lower-case letter is (UMQ-76)."""
    if 48 <= char <= 57:
        return i64(char) - 48
    if 65 <= char <= 90:
        return i64(char) - 55
    return -1


def read_number(text: str, start: i64, end: i64) -> int:
    """The number in ``text[start:end]``, which holds digits only (none at all: 0, UMQ-77), or -1 where too large."""
    while start < end and ord(text[start]) == 48:
        start += 1
    if end - start > SAFE_DIGITS + 1:
        return -1
    value: i64 = 0
    last = end if end - start <= SAFE_DIGITS else start + SAFE_DIGITS
    pos = start
    while pos < last:
        value = value * 36 + digit(ord(text[pos]))
        pos += 1
    if pos == end:
        return value
    large = int(value) * 36 + int(digit(ord(text[pos])))
    return large if large <= MAX_NUMBER else -1


def parse_number(text: str) -> int | None:
    """The number in a text, or None where it is none."""
    pos: i64 = 0
    while pos < len(text):
        if digit(ord(text[pos])) < 0:
            return None
        pos += 1
    number = read_number(text, 0, pos)
    return number if number >= 0 else None


def write_number(number: int) -> str:
    """The shortest text of a number; 0 is ``0``."""
    out = StringWriter()
    if 0 <= number < SHORT:
        append_number(out, number)
    elif 0 < number <= MAX_NUMBER:
        append_number(out, number // SPLIT)
        append_digits(out, number % SPLIT, SPLIT // 36)
    else:
        raise LocalProtocolError(f"{number} is not a number from 0 to {MAX_NUMBER}", rule="UMQ-84")
    return out.getvalue()


def append_number(out: StringWriter, value: i64) -> None:
    """Write a number without leading zeros."""
    power: i64 = 1
    while value // power >= 36:
        power *= 36
    append_digits(out, value, power)


def append_digits(out: StringWriter, value: i64, power: i64) -> None:
    """Write the digits of ``value`` from the one of weight ``power`` down."""
    while power > 0:
        top: i64 = value // power
        out.append(48 + top if top < 10 else 55 + top)
        value -= top * power
        power //= 36


@final
@mypyc_attr(acyclic=True)
class Hello(Frame):
    """A client opens the connection: the version it offers, and what the server needs to authorize it."""

    __match_args__: ClassVar[tuple[str, ...]] = ("version", "payload", "attachments", "ordinal")

    def __init__(self, version: int, payload: str = "", attachments: int = 0, ordinal: int = 0) -> None:
        self.version: Final = version
        self.payload: Final = payload
        self.attachments: Final = attachments
        self.ordinal: Final = ordinal


@final
@mypyc_attr(acyclic=True)
class Welcome(Frame):
    """The server accepts: the version both will speak, and what the client needs to authorize it."""

    __match_args__: ClassVar[tuple[str, ...]] = ("version", "payload", "attachments", "ordinal")

    def __init__(self, version: int, payload: str = "", attachments: int = 0, ordinal: int = 0) -> None:
        self.version: Final = version
        self.payload: Final = payload
        self.attachments: Final = attachments
        self.ordinal: Final = ordinal


@final
@mypyc_attr(acyclic=True)
class Fatal(Frame):
    """The last message of a connection. ``code`` is 0 where the peer gave none."""

    __match_args__: ClassVar[tuple[str, ...]] = ("code", "message")

    def __init__(self, code: int, message: str) -> None:
        self.code: Final = code
        self.message: Final = message


@final
@mypyc_attr(acyclic=True)
class Call(Frame):
    """A request; the answer, a ``Result`` or a ``CallException``, has its id."""

    __match_args__: ClassVar[tuple[str, ...]] = ("call_id", "payload", "attachments", "ordinal")

    def __init__(self, call_id: int, payload: str, attachments: int = 0, ordinal: int = 0) -> None:
        self.call_id: Final = call_id
        self.payload: Final = payload
        self.attachments: Final = attachments
        self.ordinal: Final = ordinal


@final
@mypyc_attr(acyclic=True)
class Callback(Frame):
    """A request to a function the other side has registered under ``callback_id``; answered as a ``Call`` is."""

    __match_args__: ClassVar[tuple[str, ...]] = ("call_id", "callback_id", "payload", "attachments", "ordinal")

    def __init__(self, call_id: int, callback_id: int, payload: str, attachments: int = 0, ordinal: int = 0) -> None:
        self.call_id: Final = call_id
        self.callback_id: Final = callback_id
        self.payload: Final = payload
        self.attachments: Final = attachments
        self.ordinal: Final = ordinal


@final
@mypyc_attr(acyclic=True)
class Result(Frame):
    """The answer of a request that succeeded."""

    __match_args__: ClassVar[tuple[str, ...]] = ("call_id", "payload", "attachments", "ordinal")

    def __init__(self, call_id: int, payload: str, attachments: int = 0, ordinal: int = 0) -> None:
        self.call_id: Final = call_id
        self.payload: Final = payload
        self.attachments: Final = attachments
        self.ordinal: Final = ordinal


@final
@mypyc_attr(acyclic=True)
class CallException(Frame):
    """The answer of a request that failed; the specification calls it RPC Exception."""

    __match_args__: ClassVar[tuple[str, ...]] = ("call_id", "payload")

    def __init__(self, call_id: int, payload: str) -> None:
        self.call_id: Final = call_id
        self.payload: Final = payload


@final
@mypyc_attr(acyclic=True)
class TopicUpdate(Frame):
    """An update on a topic the other side has subscribed to."""

    __match_args__: ClassVar[tuple[str, ...]] = ("topic_id", "payload", "attachments", "ordinal")

    def __init__(self, topic_id: int, payload: str, attachments: int = 0, ordinal: int = 0) -> None:
        self.topic_id: Final = topic_id
        self.payload: Final = payload
        self.attachments: Final = attachments
        self.ordinal: Final = ordinal


@final
@mypyc_attr(acyclic=True)
class TopicClose(Frame):
    """The publisher ends a topic."""

    __match_args__: ClassVar[tuple[str, ...]] = ("topic_id",)

    def __init__(self, topic_id: int) -> None:
        self.topic_id: Final = topic_id


@final
@mypyc_attr(acyclic=True)
class Unsubscribe(Frame):
    """The subscriber ends a topic."""

    __match_args__: ClassVar[tuple[str, ...]] = ("topic_id",)

    def __init__(self, topic_id: int) -> None:
        self.topic_id: Final = topic_id


@final
@mypyc_attr(acyclic=True)
class SetAttribute(Frame):
    """Sets an attribute of the sender at the receiver; attachments are part of the value."""

    __match_args__: ClassVar[tuple[str, ...]] = ("name", "value", "attachments", "ordinal")

    def __init__(self, name: str, value: str, attachments: int = 0, ordinal: int = 0) -> None:
        self.name: Final = name
        self.value: Final = value
        self.attachments: Final = attachments
        self.ordinal: Final = ordinal


@final
@mypyc_attr(acyclic=True)
class UnsetAttribute(Frame):
    """Clears an attribute."""

    __match_args__: ClassVar[tuple[str, ...]] = ("name",)

    def __init__(self, name: str) -> None:
        self.name: Final = name


@final
@mypyc_attr(acyclic=True)
class Attachment(Frame):
    """A binary message: attachment number ``index`` (from 0) of the message whose ``ordinal`` is ``owner``."""

    __match_args__: ClassVar[tuple[str, ...]] = ("body", "owner", "index")

    def __init__(self, body: bytes, owner: int = 0, index: int = 0) -> None:
        self.body: Final = body
        self.owner: Final = owner
        self.index: Final = index


@final
@mypyc_attr(acyclic=True)
class AttachmentError(Frame):
    """Takes the place of one attachment that could not be delivered, and says why."""

    __match_args__: ClassVar[tuple[str, ...]] = ("message", "owner", "index")

    def __init__(self, message: str, owner: int = 0, index: int = 0) -> None:
        self.message: Final = message
        self.owner: Final = owner
        self.index: Final = index


@final
class AttachmentQueue:
    """The attachments that were announced and have not arrived: which binary message belongs to which text message.

    Messages with attachments are numbered 1, 2, … as they come, and what arrives is matched to them first-in-first-out
    (UMQ-87). The state is one pair of numbers for each message that still waits, whatever counts the peer announces.
    After ``take`` has returned True, ``owner`` and ``index`` say whose attachment it was, and its place in it.
    """

    def __init__(self) -> None:
        self.due: i64 = 0
        self.owner: i64 = 0
        self.index: i64 = 0
        self._announced: i64 = 0
        self._counts: deque[int] = deque()
        self._first: i64 = 1
        self._taken: i64 = 0

    def announce(self, count: i64) -> i64:
        """Expect ``count`` attachments, at least one, of the message whose ordinal this returns."""
        self.due += count
        self._announced += 1
        self._counts.append(count)
        return self._announced

    def take(self) -> bool:
        """Match what arrived with the oldest attachment that is due. False where none is."""
        if self.due == 0:
            return False
        self.owner = self._first
        self.index = self._taken
        self.due -= 1
        self._taken += 1
        if self._taken == self._counts[0]:
            self._counts.popleft()
            self._first += 1
            self._taken = 0
        return True


@final
class Decoder:
    """Turns the messages of one connection into frames.

    ``max_text`` is in characters and ``max_binary`` in bytes, each of one message; ``max_unfinished`` is how many
    attachments may be announced and not received yet. A frame with attachments gets an ``ordinal``, 1, 2, …, by which
    the attachments that arrive later name it as their ``owner``.
    """

    def __init__(
        self,
        *,
        max_text: int = MAX_TEXT,
        max_binary: int = MAX_BINARY,
        max_unfinished: int = MAX_UNFINISHED,
    ) -> None:
        self._max_text: i64 = max_text
        self._max_binary: i64 = max_binary
        self._max_unfinished: i64 = max_unfinished
        self._queue = AttachmentQueue()
        self._failed: RemoteProtocolError | None = None

    def feed(self, message: str | bytes) -> list[Frame]:
        """The frame of one whole message: ``str`` is a text message, ``bytes`` a binary one."""
        if self._failed is not None:
            raise _again(self._failed)
        if isinstance(message, str):
            return [self._text(message)]
        return [self._binary(message)]

    def allow(self, *, max_text: int, max_binary: int) -> None:
        """Hold later messages to other limits: a peer that has proven who it is may send larger ones."""
        self._max_text = max_text
        self._max_binary = max_binary

    def pending(self) -> int:
        """How many bytes of unfinished messages are held: none, since messages come whole."""
        return 0

    def unfinished(self) -> int:
        """How many attachments were announced and have not arrived."""
        return self._queue.due

    def _text(self, message: str) -> Frame:
        size: i64 = len(message)
        if size > self._max_text:
            reason = f"the text message has {size} characters, more than the {self._max_text} allowed"
            raise self._limit(reason, "UMQ-133", self._max_text)
        if size == 0:
            raise self._wrong("the text message is empty", "UMQ-79", 0)
        if not message.isascii():
            self._check_text(message)
        if ord(message[0]) == ATTACHED:
            return self._with_attachments(message, size)
        return self._command(message, 0, size, 0)

    def _with_attachments(self, message: str, size: i64) -> Frame:
        """A message that begins with ``A<count>:``."""
        colon = self._separator(message, 1, size)
        count = read_number(message, 1, colon)
        if count < 0:
            raise self._wrong("the attachment count does not fit 64 bits", "UMQ-84", 1)
        pos: i64 = colon + 1
        if pos == size:
            raise self._wrong("no command follows the attachment count", "UMQ-15", pos)
        command = message[pos]
        if command not in WITH_ATTACHMENTS:
            if command == "A":
                raise self._wrong("an attachment count follows another one", "UMQ-85", pos)
            if command in READ:
                raise self._wrong(f"command '{command}' can't have attachments", "UMQ-85", pos)
            raise self._unknown(command, pos)
        room: int = self._max_unfinished - self._queue.due
        if count > room:  # not as native integers: a count may have 64 bits, without a sign
            reason = (
                f"{count} attachments announced while {self._queue.due} are due,"
                f" more than the {self._max_unfinished} allowed"
            )
            raise self._limit(reason, "UMQ-134", 1)
        return self._command(message, pos, size, count)

    def _command(self, message: str, pos: i64, size: i64, count: i64) -> Frame:
        """The command at ``pos``, which ``count`` attachments will follow."""
        command: i32 = ord(message[pos])
        end: i64 = pos + 1
        short: i64 = 0
        char: i32 = 0
        while end < size:
            char = ord(message[end])
            value = digit(char)
            if value < 0:
                break
            if end - pos <= SAFE_DIGITS:
                short = short * 36 + value
            end += 1
        if message[pos] not in READ:
            raise self._unknown(message[pos], pos)
        if end == size or char != COLON:
            raise self._no_separator(message, end, size)
        number: int = short
        if end - pos > SAFE_DIGITS + 1:
            number = read_number(message, pos + 1, end)
            if number < 0:
                raise self._wrong("the id does not fit 64 bits", "UMQ-84", pos + 1)
        start: i64 = end + 1
        if command == TOPIC_UPDATE:
            return TopicUpdate(number, message[start:], count, self._announce(count))
        if command == CALL:
            return Call(number, message[start:], count, self._announce(count))
        if command == RESULT:
            return Result(number, message[start:], count, self._announce(count))
        if command == CALLBACK:
            return self._callback(message, number, start, size, count)
        if command == CALL_EXCEPTION:
            return CallException(number, message[start:])
        if command == SET_ATTRIBUTE:
            return self._set_attribute(message, start, count)
        if command == UNSET_ATTRIBUTE:
            if start == size:
                raise self._wrong("the name of the attribute to clear is empty", "UMQ-107", start)
            return UnsetAttribute(message[start:])
        if command == TOPIC_CLOSE:
            return TopicClose(number)
        if command == UNSUBSCRIBE:
            return Unsubscribe(number)
        if command == ATTACHMENT_ERROR:
            if not self._queue.take():
                raise self._wrong("an attachment error for an attachment nobody announced", "UMQ-89", pos)
            return AttachmentError(message[start:], self._queue.owner, self._queue.index)
        if command == NOT_HANDLED:
            return CallException(number, message[start:])
        if command == HELLO:
            return Hello(number, message[start:], count, self._announce(count))
        if command == WELCOME:
            return Welcome(number, message[start:], count, self._announce(count))
        code, reason = read_error_text(message[start:])
        return Fatal(code, reason)

    def _callback(self, message: str, number: int, start: i64, size: i64, count: i64) -> Frame:
        """UMQ-47: the payload of ``B`` begins with the id of the callback and another separator."""
        colon = self._separator(message, start, size, "UMQ-83")
        callback = read_number(message, start, colon)
        if callback < 0:
            raise self._wrong("the callback id does not fit 64 bits", "UMQ-84", start)
        return Callback(number, callback, message[colon + 1 :], count, self._announce(count))

    def _set_attribute(self, message: str, start: i64, count: i64) -> Frame:
        """UMQ-107: the first ``=`` splits the payload of ``S``."""
        equals: i64 = message.find("=", start)
        if equals < 0:
            raise self._wrong("no '=' between the attribute's name and its value", "UMQ-82", len(message))
        if equals == start:
            raise self._wrong("the name of the attribute to set is empty", "UMQ-107", start)
        return SetAttribute(message[start:equals], message[equals + 1 :], count, self._announce(count))

    def _binary(self, message: bytes) -> Frame:
        size: i64 = len(message)
        if size > self._max_binary:
            reason = f"the binary message has {size} bytes, more than the {self._max_binary} allowed"
            raise self._limit(reason, "UMQ-133", self._max_binary)
        if not self._queue.take():
            raise self._wrong("a binary message nobody announced", "UMQ-89", 0)
        return Attachment(message, self._queue.owner, self._queue.index)

    def _announce(self, count: i64) -> i64:
        return self._queue.announce(count) if count > 0 else 0

    def _separator(self, message: str, start: i64, size: i64, rule: str = "UMQ-78") -> i64:
        """The position of the ``:`` that ends the digits at ``start``."""
        end = start
        while end < size and digit(ord(message[end])) >= 0:
            end += 1
        if end == size or ord(message[end]) != COLON:
            raise self._no_separator(message, end, size, rule)
        return end

    def _check_text(self, message: str) -> None:
        """UMQ-01: transports that decode UTF-8 give no such text; callers may rely on this check all the same."""
        at = _not_text(message)
        if at >= 0:
            raise self._wrong("the text message can't be written as UTF-8", "UMQ-01", at)

    def _no_separator(self, message: str, end: i64, size: i64, rule: str = "UMQ-78") -> RemoteProtocolError:
        if end == size:
            return self._wrong("the message ends before the ':' that follows the digits", rule, end)
        char = message[end]
        if "a" <= char <= "z":
            return self._wrong(f"'{char}' is lower case; base-36 digits are 0-9 and A-Z", "UMQ-76", end)
        return self._wrong("a character is neither a base-36 digit nor the ':' that follows them", rule, end)

    def _unknown(self, command: str, position: i64) -> RemoteProtocolError:
        reason = f"command '{command}' is none of {COMMANDS}" if command.isprintable() else f"none of {COMMANDS}"
        return self._fail(FatalCode.UNSUPPORTED_COMMAND, reason, "UMQ-80", position)

    def _wrong(self, reason: str, rule: str, position: i64) -> RemoteProtocolError:
        return self._fail(FatalCode.PROTOCOL_ERROR, reason, rule, position)

    def _limit(self, reason: str, rule: str, position: i64) -> RemoteProtocolError:
        return self._fail(FatalCode.LIMIT_EXCEEDED, reason, rule, position)

    def _fail(self, code: FatalCode, reason: str, rule: str, position: i64) -> RemoteProtocolError:
        """The error to raise now; one like it is kept for every later call."""
        self._failed = violation(code, reason, rule, position)
        return _again(self._failed)


def violation(code: FatalCode, reason: str, rule: str, position: int = 0) -> RemoteProtocolError:
    """The error for what the peer did wrong, with the ``Fatal`` that answers it."""
    reply = Fatal(code.value, describe(code, reason))
    return RemoteProtocolError(reason, rule=rule, position=position, reply=reply)


def _again(error: RemoteProtocolError) -> RemoteProtocolError:
    """A fresh error of the same fields: one that has been raised keeps its traceback, and so the message, alive."""
    return RemoteProtocolError(error.reason, rule=error.rule, position=error.position, reply=error.reply)


def _not_text(text: str) -> int:
    """Where a text has a character that UTF-8 can't write (a lone surrogate), or -1."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return error.start
    return -1


def encode(frame: Frame) -> str | bytes:
    """The message of a frame: ``bytes`` for an ``Attachment``, ``str`` for all others.

    Raises ``LocalProtocolError`` for what UMQ does not allow. ``ordinal``, ``owner`` and ``index`` are not written:
    attachments belong to messages by their order.
    """
    if isinstance(frame, Attachment):
        return frame.body
    text = _encoded(frame)
    if not text.isascii() and _not_text(text) >= 0:
        raise LocalProtocolError("the message can't be written as UTF-8", rule="UMQ-01")
    return text


def _encoded(frame: Frame) -> str:
    if isinstance(frame, TopicUpdate):
        return _message("T", frame.topic_id, frame.payload, frame.attachments)
    if isinstance(frame, Call):
        return _message("C", frame.call_id, frame.payload, frame.attachments)
    if isinstance(frame, Result):
        return _message("R", frame.call_id, frame.payload, frame.attachments)
    if isinstance(frame, Callback):
        payload = f"{write_number(frame.callback_id)}:{frame.payload}"
        return _message("B", frame.call_id, payload, frame.attachments)
    if isinstance(frame, CallException):
        return _message("E", frame.call_id, frame.payload)
    if isinstance(frame, TopicClose):
        return _message("D", frame.topic_id, "")
    if isinstance(frame, Unsubscribe):
        return _message("U", frame.topic_id, "")
    if isinstance(frame, SetAttribute):
        if not frame.name or "=" in frame.name:
            raise LocalProtocolError(f"{frame.name!r} can't name an attribute: empty or with '='", rule="UMQ-107")
        return _attached(f"S:{frame.name}={frame.value}", frame.attachments)
    if isinstance(frame, UnsetAttribute):
        if not frame.name:
            raise LocalProtocolError("the name of the attribute to clear is empty", rule="UMQ-107")
        return "X:" + frame.name
    if isinstance(frame, AttachmentError):
        return "-:" + frame.message
    if isinstance(frame, Hello):
        return _message("H", frame.version, frame.payload, frame.attachments)
    if isinstance(frame, Welcome):
        return _message("W", frame.version, frame.payload, frame.attachments)
    if isinstance(frame, Fatal):
        if not 0 <= frame.code <= MAX_CODE:
            raise LocalProtocolError(f"{frame.code} is not a code from 0 to {MAX_CODE}", rule="UMQ-27")
        return f"F0:{frame.code} {frame.message}"
    raise LocalProtocolError(f"{type(frame).__name__} is not a UMQ message", rule="UMQ-05")


def _message(command: str, number: int, payload: str, attachments: int = 0) -> str:
    return _attached(f"{command}{write_number(number)}:{payload}", attachments)


def _attached(text: str, attachments: int) -> str:
    return text if attachments == 0 else f"A{write_number(attachments)}:{text}"
