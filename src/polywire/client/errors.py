"""What can go wrong between a program and its peer: the clients' branch of the error tree.

An error says what it leaves open. Where something was to be sent, ``sent`` tells: False, nothing of it has left this
program, so it may be tried again without harm; True, it was sent and no answer came, so it may have arrived or not;
None, nothing was to be sent.
"""

from collections.abc import Sequence
from typing import Final

from polywire.errors import PolywireError

HANDLER_FAILED: Final = 500


class ClientError(PolywireError):
    """Anything a client reports."""


class AddressError(ClientError, ValueError):
    """A URL, or an argument that completes it, is wrong. ``part`` names the part: scheme, host, port, path, …."""

    def __init__(self, reason: str, *, part: str) -> None:
        super().__init__(reason)
        self.part = part


class ConnectFailed(ClientError):
    """The peer could not be reached, or does not speak what was expected. ``address`` is without credentials."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"can't connect to {address}: {reason}")
        self.address = address
        self.reason = reason


class Refused(ClientError):
    """The peer said no. ``code`` is the protocol's own; ``temporary`` tells whether it may say yes later."""

    def __init__(self, reason: str, *, code: int | str | None = None, temporary: bool = False) -> None:
        super().__init__(reason if code is None else f"{reason} ({code})")
        self.reason = reason
        self.code = code
        self.temporary = temporary


class TooLarge(Refused):
    """A message is larger than the peer, or ``max_size``, allows. ``size`` is its body's, ``limit`` None if unknown."""

    def __init__(self, size: int, limit: int | None = None, detail: str = "") -> None:
        allowed = "the peer allows" if limit is None else f"the {limit} allowed"
        super().__init__(f"the message has {size} bytes, more than {allowed}" + (f" ({detail})" if detail else ""))
        self.size = size
        self.limit = limit


class PatternError(ClientError, ValueError):
    """A pattern has another protocol's wildcards. ``suggestion`` is the pattern with ours."""

    def __init__(self, pattern: str, suggestion: str) -> None:
        super().__init__(
            f"{pattern!r} has MQTT's wildcards; here * is one level and a last ** any number of them: {suggestion!r}"
        )
        self.pattern = pattern
        self.suggestion = suggestion


class Unfinished(ClientError):
    """Something was not carried through. ``sent`` tells how far it came."""

    def __init__(self, reason: str, *, sent: bool | None = None) -> None:
        words = {None: "", True: "; it was sent, and may have arrived", False: "; it was not sent"}
        super().__init__(reason + words[sent])
        self.reason = reason
        self.sent = sent


class ConnectionLost(Unfinished):
    """The connection ended before it was done. ``too_large``: the peer ended it because of a message's size.

    ``limit`` is the size it allows then, None if it did not say.
    """

    def __init__(
        self, reason: str, *, sent: bool | None = None, too_large: bool = False, limit: int | None = None
    ) -> None:
        super().__init__(reason, sent=sent)
        self.too_large = too_large
        self.limit = limit


class Closed(Unfinished):
    """The client was closed, by its own program or because it gave up; ``__cause__`` then says why."""

    def about(self, *, sent: bool) -> "Closed":
        """The same, said of something that was to be sent."""
        closed = Closed(self.reason, sent=sent)
        closed.__cause__ = self.__cause__
        return closed


class BufferFull(Unfinished):
    """Nothing more is kept: ``held`` bytes wait to be sent, and ``limit`` is the most. Await what was published."""

    def __init__(self, held: int, limit: int) -> None:
        super().__init__(f"{held} bytes wait to be sent, and no more than {limit} may", sent=False)
        self.held = held
        self.limit = limit


class Overrun(Unfinished):
    """A subscription was ended: ``waiting`` messages were not taken while an answer was awaited behind them.

    Read every subscription you have, let another connection carry one of the two, or raise ``limit``.
    """

    def __init__(self, waiting: int) -> None:
        super().__init__(f"{waiting} messages waited, and none was taken while an answer was awaited behind them")
        self.waiting = waiting


class Timeout(Unfinished, TimeoutError):
    """It took longer than it was given."""

    def __init__(self, what: str, seconds: float, *, sent: bool | None = None) -> None:
        super().__init__(f"{what} took longer than {seconds:g} s", sent=sent)
        self.seconds = seconds


class CallFailed(ClientError):
    """A service answered with an error, or could not be asked.

    ``code`` is as in HTTP, ``tag`` for programs, ``text`` for people, ``retry_after`` in seconds or None. ``from_hub``:
    the hub failed the call, because nobody offers the service, say, or it took too long; the service did not answer.
    """

    def __init__(
        self, code: int, tag: str, text: str, *, retry_after: float | None = None, from_hub: bool = False
    ) -> None:
        super().__init__(f"{code} {tag}: {text}" if tag else f"{code}: {text}")
        self.code = code
        self.tag = tag
        self.text = text
        self.retry_after = retry_after
        self.from_hub = from_hub


def call_failed(code: int, tag: str, text: str, milliseconds: int, *, from_hub: bool) -> CallFailed:
    """An error as a protocol carries it. One with code 500 and no tag is a handler that failed."""
    if code == HANDLER_FAILED and not tag:
        tag = "handler-failed"
    return CallFailed(code, tag, text, retry_after=milliseconds / 1000 if milliseconds else None, from_hub=from_hub)


class AttachmentFailed(ClientError):
    """An attachment will not come: the other side says why, or the connection has ended."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Unsupported(ClientError):
    """The protocol of this connection can't do that. ``protocols`` are those that can."""

    def __init__(self, what: str, protocol: str, protocols: Sequence[str]) -> None:
        can = ", ".join(protocols) if protocols else "no protocol"
        super().__init__(f"{what}: not with {protocol}, but with {can}")
        self.what = what
        self.protocol = protocol
        self.protocols = tuple(protocols)
