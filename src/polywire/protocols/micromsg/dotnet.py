"""The ``dotnet`` extension: the type of each message, told by an EXTENSION frame before it.

A type sticks: a message before which none was told has the type of the message before it. So a message without a type
needs an empty type name before it where one with a type came earlier.
"""

from polywire.protocols.micromsg.errors import BAD_FRAME, LocalProtocolError
from polywire.protocols.micromsg.frames import Error, Extension
from polywire.protocols.micromsg.text import shown


class TypeReader:
    """The types of the messages the peer sends. ``current`` is the next one's, empty where it has none."""

    def __init__(self) -> None:
        self.current = ""

    def told(self, payload: bytes) -> Error | None:
        """Take the payload of a ``dotnet`` frame, or return the ERROR to answer with."""
        try:
            self.current = payload.decode()
        except UnicodeDecodeError as error:
            return Error(BAD_FRAME, (("reason", f"the type name is not UTF-8 at its octet {error.start}"),))
        return None


class TypeWriter:
    """The types of the messages this side sends. ``number`` is the number of ``dotnet`` on this connection.

    ``told`` is the type the peer heard of last: whoever does not send what ``before`` gave sets it back.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.told = ""

    def before(self, type_name: str) -> Extension | None:
        """The frame to send before a message of this type (empty: none), or None where none is needed."""
        if not type_name and not self.told:
            return None
        try:
            payload = type_name.encode()
        except UnicodeEncodeError as error:
            reason = f"the type name {shown(type_name)} can't be written as UTF-8"
            raise LocalProtocolError(reason, rule="MICROMSG-172") from error
        self.told = type_name
        return Extension(self.number, payload)
