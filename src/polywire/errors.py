"""The errors polywire raises: one tree, with fields to act on.

Each protocol has its own branch below ``LocalProtocolError`` and ``RemoteProtocolError`` in its ``errors.py``. A
codec fed with bad input raises its ``RemoteProtocolError`` and nothing else.
"""

from collections.abc import Sequence


class PolywireError(Exception):
    """Anything polywire itself reports."""


class ProtocolError(PolywireError):
    """A protocol's rule was broken.

    ``rule`` is the rule's number in ``docs/protocols/<name>.md``, ``reason`` describes what was wrong.
    """

    def __init__(self, reason: str, *, rule: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.rule = rule

    def __str__(self) -> str:
        return f"{self.reason} ({self.rule})"


class LocalProtocolError(ProtocolError):
    """This side tried to send what it may not: a mistake in the calling program, nothing was sent."""


class RemoteProtocolError(ProtocolError):
    """The peer broke a rule that ends the connection.

    ``position`` is the offset, in the stream of this connection (for message transports: in the message), of the
    byte or character where it went wrong. ``reply`` is the frame to answer with before closing, or None if the
    protocol has none. ``frames`` are the frames that were whole before the violation, in the same call
    of ``feed``: they count, the rest does not. A decoder that has raised raises the same error on every later call.
    ``oversize`` is the size of a message that is over the size limit, 0 where that is not what was wrong.
    """

    def __init__(
        self,
        reason: str,
        *,
        rule: str,
        position: int,
        reply: object | None = None,
        frames: Sequence[object] = (),
    ) -> None:
        super().__init__(reason, rule=rule)
        self.position = position
        self.reply = reply
        self.frames = list(frames)
        self.oversize = 0

    def __str__(self) -> str:
        return f"{self.reason} at {self.position} ({self.rule})"
