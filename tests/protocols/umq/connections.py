"""UMQ connections without a transport: one end alone, or two that are wired to each other."""

from polywire.protocols.umq import Connection, Hello, Role, Welcome, encode
from polywire.wire.frame import Frame

End = Connection[str, str]


def server(*, opened: bool = False, in_flight: int = 1024, topics: int = 1024, callbacks: int = 1024) -> End:
    """The end that accepts."""
    end: End = Connection(Role.SERVER, in_flight=in_flight, topics=topics, callbacks=callbacks)
    if opened:
        events(end, Hello(1))
        end.send(Welcome(1))
    return end


def client(*, opened: bool = False, in_flight: int = 1024, topics: int = 1024, callbacks: int = 1024) -> End:
    """The end that connects."""
    end: End = Connection(Role.CLIENT, in_flight=in_flight, topics=topics, callbacks=callbacks)
    if opened:
        end.send(Hello(1))
        events(end, Welcome(1))
    return end


def events(end: End, *frames: Frame) -> list[Frame]:
    """Let the peer send frames; what has to be acted on."""
    found = []
    for frame in frames:
        end.receive(encode(frame))
        while (event := end.next_event()) is not None:
            found.append(event)
    return found


def passed(sender: End, receiver: End, frame: Frame) -> list[Frame]:
    """Send a frame from one end to the other; what that one has to act on."""
    receiver.receive(sender.send(frame))
    found = []
    while (event := receiver.next_event()) is not None:
        found.append(event)
    return found


def answered(end: End, frame: Frame) -> str | bytes | None:
    """Let the peer send a frame; the message that answers it, if UMQ prescribes one."""
    end.receive(encode(frame))
    end.next_event()
    return None if end.reply is None else end.send(end.reply)
