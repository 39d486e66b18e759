"""What a COMMAND asks for, and the ERROR frames after which the connection lives on."""

from dataclasses import dataclass

from polywire.protocols.micromsg import destinations, filters
from polywire.protocols.micromsg.errors import BAD_FRAME, FORBIDDEN, NO_SUCH_DESTINATION, UNKNOWN_COMMAND
from polywire.protocols.micromsg.filters import Filter
from polywire.protocols.micromsg.frames import Command, Error

SUBSCRIBE = "subscribe"
UNSUBSCRIBE = "unsubscribe"
PING = "ping"
PONG = "pong"


@dataclass(frozen=True, slots=True)
class Subscribe:
    """The peer wants the messages of a destination that pass the filter."""

    destination: str
    condition: Filter


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """The peer no longer wants the messages of a destination."""

    destination: str


@dataclass(frozen=True, slots=True)
class Ping:
    """The peer wants ``ANSWER_TO_PING``."""


@dataclass(frozen=True, slots=True)
class Pong:
    """The peer answers a ``ping``."""


ANSWER_TO_PING = Command(PONG)
"""MICROMSG-132."""

Request = Subscribe | Unsubscribe | Ping | Pong


def read(command: Command, *, pub_sub: bool, max_clauses: int = filters.MAX_CLAUSES) -> Request | Error:
    """What a command asks for, or the ERROR to answer with. ``pub_sub``: whether that extension was agreed on."""
    match command.name:
        case "ping":
            return Ping()
        case "pong":
            return Pong()
        case "subscribe" | "unsubscribe" if pub_sub:
            return _subscription(command, max_clauses)
        case name:
            return unknown_command(name)  # MICROMSG-131


def _subscription(command: Command, max_clauses: int) -> Request | Error:
    destination = command.value("destination")
    if destination is None:
        return Error(BAD_FRAME, (("reason", f"{command.name} has no destination"),))
    if destinations.read(destination) is None:
        return no_such_destination(destination)
    if command.name == UNSUBSCRIBE:
        return Unsubscribe(destination)
    condition = filters.read(command.value("filter") or "", max_clauses=max_clauses)
    return condition if isinstance(condition, Error) else Subscribe(destination, condition)


def write(request: Request) -> Command:
    """The COMMAND that asks for something. Raises ``LocalProtocolError`` for a filter that can't be written."""
    match request:
        case Subscribe(destination, condition) if condition.clauses:
            return Command(SUBSCRIBE, (("destination", destination), ("filter", filters.write(condition))))
        case Subscribe(destination):
            return Command(SUBSCRIBE, (("destination", destination),))
        case Unsubscribe(destination):
            return Command(UNSUBSCRIBE, (("destination", destination),))
        case Ping():
            return Command(PING)
        case Pong():
            return ANSWER_TO_PING


def unknown_command(name: str) -> Error:
    """There is no such command, or its extension was not agreed on."""
    return Error(UNKNOWN_COMMAND, (("name", name),))


def forbidden(destination: str) -> Error:
    """The peer may not do this with the destination."""
    return Error(FORBIDDEN, (("destination", destination),))


def no_such_destination(destination: str) -> Error:
    """There is nothing at the destination, or the peer is not subscribed to it."""
    return Error(NO_SUCH_DESTINATION, (("destination", destination),))
