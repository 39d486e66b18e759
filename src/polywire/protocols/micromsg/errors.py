"""MicroMsg2's branch of the error tree, and the names its ERROR frames carry.

A violation of the protocol is a ``RemoteProtocolError`` with the ERROR frame to send as its ``reply``. What is refused
without ending the connection (an unknown command, a filter that can't be read) is an ERROR frame in a return value;
``ends_connection`` says which is which.
"""

from types import MappingProxyType

from polywire import errors


class LocalProtocolError(errors.LocalProtocolError):
    """This side tried to send what MicroMsg2 does not allow."""


class RemoteProtocolError(errors.RemoteProtocolError):
    """The peer broke a rule of MicroMsg2; ``reply`` is the ERROR frame to send before disconnecting."""


class MalformedError(errors.ProtocolError):
    """A text does not follow its grammar. ``at`` is the position in the text where it went wrong."""

    def __init__(self, reason: str, *, rule: str, at: int) -> None:
        super().__init__(reason, rule=rule)
        self.at = at


BAD_VERSION = "bad-version"
BAD_HANDSHAKE = "bad-handshake"
BAD_FRAME = "bad-frame"
BAD_ACK = "bad-ack"
UNSUPPORTED_EXTENSION = "unsupported-extension"
UNKNOWN_COMMAND = "unknown-command"
FORBIDDEN = "forbidden"
TOO_LARGE = "too-large"
NO_SUCH_DESTINATION = "no-such-destination"
BAD_FILTER = "bad-filter"
WINDOW_EXCEEDED = "window-exceeded"
SHUTTING_DOWN = "shutting-down"

ENDS_CONNECTION = MappingProxyType(
    {
        BAD_VERSION: True,
        BAD_HANDSHAKE: True,
        BAD_FRAME: True,
        BAD_ACK: True,
        UNSUPPORTED_EXTENSION: True,
        UNKNOWN_COMMAND: False,
        FORBIDDEN: False,
        TOO_LARGE: True,
        NO_SUCH_DESTINATION: False,
        BAD_FILTER: False,
        WINDOW_EXCEEDED: True,
        SHUTTING_DOWN: True,
    }
)
"""MICROMSG-99, MICROMSG-100: the names there are, and whether the sender disconnects after the error."""


def ends_connection(name: str) -> bool:
    """Whether the connection ends after an error of this name. An unknown name ends it, too (MICROMSG-169)."""
    return ENDS_CONNECTION.get(name, True)
