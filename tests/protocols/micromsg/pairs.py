"""Two connections back to back, for tests of what both sides do."""

from polywire.protocols.micromsg.connection import Connection, Ended, Terms
from polywire.protocols.micromsg.frames import Command, Error
from polywire.wire.frame import Frame, Role

PLAIN = Terms("x", supported=())


def events(connection: Connection, data: bytes = b"") -> list[Frame]:
    """Everything that a connection makes of some bytes."""
    connection.receive(data)
    found = []
    while (event := connection.next_event()) is not None:
        found.append(event)
    return found


def violation(connection: Connection, data: bytes) -> Error:
    """The ERROR for bytes that break a rule."""
    *_, ended = events(connection, data)
    assert isinstance(ended, Ended), ended
    assert events(connection, data) == []
    return ended.error


def pair(client: Terms = PLAIN, server: Terms = PLAIN) -> tuple[Connection, Connection]:
    """A client and a server that have agreed."""
    near, far = Connection(Role.CLIENT, client), Connection(Role.SERVER, server)
    events(far, near.handshake())
    events(near, far.handshake())
    events(far, near.handshake())
    assert events(far, near.send(Command("ping"))) == [Command("ping")]
    return near, far
