"""MicroMsg2 on the hub's side of one connection: handshake, then frames in, hub operations, frames out.

The client logs in with its final handshake message; what it sent after that waits in the ``Connection`` until the login
is decided. From then on messages are published, acknowledged once they are safe, and commands are answered, all in
order.
"""

from collections import deque
from typing import Final, assert_never, final

from polywire.hub.access import Identity
from polywire.hub.client import Client
from polywire.hub.hub import Hub
from polywire.hub.message import Headers, Message
from polywire.hub.peer import Limits, Login, Peer, Refusal, Refused
from polywire.protocols.micromsg import errors
from polywire.protocols.micromsg.connection import Agreement, Connection, Ended, State, Terms
from polywire.protocols.micromsg.connection import Limits as ConnectionLimits
from polywire.protocols.micromsg.delivery import (
    FORMS,
    IS_JSON,
    JSON_TYPE,
    MAX_VENDOR_BYTES,
    MAX_VENDOR_FRAMES,
    Outgoing,
    Receivers,
    channel_of_message,
    headers,
    write_vendor_frames,
)
from polywire.protocols.micromsg.errors import ends_connection
from polywire.protocols.micromsg.filters import PING, PONG, UNSUBSCRIBE, read_subscription
from polywire.protocols.micromsg.frames import Command, Error, Extension, Handshake, encode, read_nack
from polywire.protocols.micromsg.frames import Message as Send
from polywire.protocols.micromsg.text import DEFAULT_COUNT, LARGEST_COUNT, MAX_PROPERTIES, X_AUTH, X_NACK, batch_ack
from polywire.wire.frame import Role

PROTOCOL: Final = "micromsg"
IDENTITY: Final = "polywire"
ANSWER_TO_PING: Final = encode(PONG)
FAULTS: Final = {
    errors.UNKNOWN_COMMAND: "MICROMSG-131",
    errors.BAD_FILTER: "MICROMSG-173",
    errors.NO_SUCH_DESTINATION: "MICROMSG-134",
}
"""The rule that a command broke, by the error it got; for the counters."""
REFUSED_OFFER: Final = "MICROMSG-14"
MESSAGE_RULES: Final = ("MICROMSG-124", "MICROMSG-125", "MICROMSG-150")
"""The rules that are broken by a message, which is counted as received all the same."""


def terms(in_flight: int) -> Terms:
    """The hub's part in the handshake: it knows every extension, requires none, and suggests ``batch-ack``.

    It agrees on vendor extensions that a client offers as optional, too, and passes their frames on. ``in_flight``: how
    many messages may be unacknowledged at most.
    """
    cap = min(in_flight, LARGEST_COUNT)
    return Terms(IDENTITY, optional=(batch_ack(min(DEFAULT_COUNT, cap)),), max_count=cap, forwards=True)


@final
class MicromsgSession:
    """One MicroMsg2 connection. Its client joins the hub when it has ended the handshake and is logged in."""

    def __init__(self, hub: Hub, client: Client, peer: Peer, limits: Limits) -> None:
        self._hub: Final = hub
        self._client: Final = client
        self._peer: Final = peer
        self._limits: Final = limits
        self._connection: Final = Connection(
            Role.SERVER,
            terms(limits.in_flight),
            ConnectionLimits(
                limits.message_size,
                limits.header_size,
                min(limits.header_size, MAX_PROPERTIES),
                limits.message_size_before_auth,
            ),
        )
        self._logging_in = False
        self._joined = False
        self._draining = False
        self._nack_number = 0
        self._json = False
        self._attached: Final[list[tuple[str, bytes]]] = []  # frames of vendor extensions, for the next message
        self._attached_bytes = 0
        self._outgoing: Final = Outgoing(client, self._connection)
        self._receivers: Final = Receivers(hub, client, self._outgoing, limits.subscriptions)
        self._last = 0  # the last message that waits for its ack, 0 for none
        self._unsafe: Final[deque[int]] = deque()
        self._destination = ""
        self._channel = ""
        self._chunk = b""  # the newest one, to show where it can't be read

    def received(self, data: bytes) -> None:
        """Handle what the peer has sent."""
        self._client.counters.octets_in += len(data)
        self._connection.receive(data)
        self._chunk = data
        self._pull()
        self._chunk = b""

    def lost(self) -> None:
        """The connection has ended."""
        self._connection.lost()
        self._outgoing.close()
        self._client.outbox.on_room = None
        self._receivers.end()
        self._hub.leave(self._client)

    def drain(self) -> None:
        """The hub is shutting down: take no more messages, and send none of queues."""
        self._draining = True
        self._outgoing.draining = True
        if not self._joined:
            self._shut_down()

    def pending(self) -> int:
        """How many bytes of an unfinished message are held."""
        return self._connection.pending()

    def no_room(self, reason: str) -> None:
        """MICROMSG-198: ERROR ``too-large``."""
        self._acknowledge()
        self._say_last(Error(errors.TOO_LARGE, (("reason", reason),)))

    def busy(self) -> bool:
        """Whether an ack is due, from the hub or from the peer, or messages wait for the window."""
        if not self._joined or not self._connection.is_established():
            return False
        return len(self._unsafe) > 0 or self._last != 0 or self._outgoing.is_busy()

    def goodbye(self, *, expired: bool = False) -> None:
        """End the connection from the hub's side: ERROR ``shutting-down``, then close."""
        self._shut_down("the login has expired" if expired else "")

    def timed_out(self) -> None:
        """MICROMSG-176: the peer took too long for its handshake, or sent nothing for too long: ERROR, then close."""
        if self._joined:
            self._shut_down("no data received within the idle timeout")
        else:
            self._shut_down("the handshake took too long", errors.BAD_HANDSHAKE)

    def _pull(self) -> None:
        """Handle what has arrived, in order. During a login it waits in the connection."""
        while not self._logging_in:
            event = self._connection.next_event()
            if event is None:
                self._acknowledge()
                return
            if isinstance(event, Send):
                self._publish(event)
            elif isinstance(event, Extension):
                self._extension(event)
            elif isinstance(event, Command):
                self._command(event)
            elif isinstance(event, Handshake):
                self._shake()
            elif isinstance(event, Error):
                known = event.name in errors.ENDS_CONNECTION
                self._client.counters.fault(f"peer: {event.name}" if known else "peer")
                if self._connection.state is State.CLOSED:
                    self._outgoing.close()
                    self._peer.close()
            elif isinstance(event, Ended) and event.rule == REFUSED_OFFER and self._hub.draining:
                self._shut_down()  # MICROMSG-186: whatever the client offers
            elif isinstance(event, Ended):
                if event.rule in MESSAGE_RULES:
                    self._client.counters.received += 1
                if event.oversize:
                    self._hub.oversized(self._client, event.oversize, self._limits.message_size)
                self._end(event.error, event.rule)

    # The handshake.

    def _shake(self) -> None:
        """Answer the client's offer; with its final message, log it in with what ``x-auth`` says there."""
        agreement = self._connection.agreement
        if agreement is not None:
            self._client.name = agreement.peer
            presented = agreement.credentials or {}
            self._logging_in = True
            login = Login(presented.get("user", ""), presented.get("password"), presented.get("token"))
            self._peer.login(login, self._identified)
        elif self._hub.draining:
            self._shut_down()
        else:
            self._client.outbox.put(self._connection.handshake())

    def _identified(self, who: Identity | Refusal) -> None:
        """The login is decided: begin, or refuse."""
        self._logging_in = False
        agreement = self._connection.agreement
        if agreement is None or not self._connection.is_established():
            return
        if isinstance(who, Refusal):
            arguments = [("name", X_AUTH), ("reason", who.reason)]
            if who.retry_after > 0:
                arguments.append(("retry-after", f"{who.retry_after:.3f}"))
            self._end(Error(errors.FORBIDDEN, tuple(arguments)), "login")
            return
        self._begin(agreement)
        self._pull()

    def _begin(self, agreement: Agreement) -> None:
        client = self._client
        self._joined = True
        if self._connection.ack_number:  # without acks what was written is taken
            self._nack_number = agreement.number(X_NACK) or 0
        self._json = agreement.json
        self._outgoing.agree(agreement)
        client.outbox.on_room = self._room
        self._peer.established()
        self._hub.join(client)

    # Frames from the peer.

    def _publish(self, frame: Send) -> None:
        """MICROMSG-03: a SEND goes to its topic or queue. It is acknowledged even if refused, after the ERROR."""
        client = self._client
        client.counters.received += 1
        if self._draining:
            client.counters.drop(Refused.DRAINING.label)
            self._shut_down()
            return
        acks = self._connection.ack_number > 0
        if acks:
            self._last = frame.sequence
        before = ""
        if self._attached:
            before = write_vendor_frames(self._attached)
            self._attached.clear()
            self._attached_bytes = 0
        if frame.destination != self._destination or not self._channel:
            channel = channel_of_message(frame.destination)
            if isinstance(channel, Error):
                client.counters.drop("no-such-destination")
                self._refuse(Error(channel.name, (*channel.arguments, ("sequence", str(frame.sequence)))))
                return
            self._destination = frame.destination
            self._channel = channel
        content_type = ""
        attached: Headers = ()
        named_type = self._connection.type_name
        if frame.properties or named_type or before:
            content_type, attached = headers(frame.properties, named_type, before)
        if self._json and not content_type:
            content_type = JSON_TYPE
        message = Message(
            self._channel, frame.payload, content_type, attached, time=self._hub.clock(), origin=client.number
        )
        if self._json:
            message.encoded[client.protocol * FORMS + IS_JSON] = True
        refused = self._hub.publish(message, client, acknowledged=acks)
        if refused is not None:
            self._refuse_message(frame, refused)

    def _refuse_message(self, frame: Send, refused: Refused) -> None:
        named = (("destination", frame.destination), ("sequence", str(frame.sequence)))
        match refused:
            case Refused.FORBIDDEN:
                self._refuse(Error(errors.FORBIDDEN, named))
            case Refused.UNAVAILABLE | Refused.DRAINING:
                self._last = 0  # not acknowledged, so that it is sent again
                self._shut_down(refused.message)
            case Refused.QUEUE_FULL | Refused.QUEUES_FULL | Refused.TOO_MANY_QUEUES:
                self._refuse(Error(errors.FORBIDDEN, (*named, ("reason", refused.message))))
            case (
                Refused.SERVICE_CHANNEL
                | Refused.TOO_DEEP
                | Refused.RETAINED_FULL
                | Refused.UNSUPPORTED
                | Refused.LIMIT
                | Refused.PATTERN_COST
                | Refused.NAMES_SIZE
                | Refused.WATCHERS
                | Refused.WILLS_SIZE
            ):
                self._refuse(Error(errors.NO_SUCH_DESTINATION, (*named, ("reason", refused.label))))
            case _:
                assert_never(refused)

    def _extension(self, frame: Extension) -> None:
        """An ack, or what goes with the next message: its type, or a vendor's frame."""
        if frame.number == self._connection.ack_number:
            self._outgoing.acked(self._connection.acknowledged)
            self._receivers.resume()
        elif frame.number == self._nack_number:
            rejected = read_nack(frame.payload)
            wrong = rejected if isinstance(rejected, Error) else self._outgoing.nacked(*rejected)
            if wrong is not None:
                self._end(wrong, "MICROMSG-196")
                return
            self._receivers.resume()
        else:
            name = self._connection.purpose(frame)
            if isinstance(name, Error):
                self._end(name, "MICROMSG-167")
                return
            self._attached_bytes += len(frame.payload)
            if len(self._attached) == MAX_VENDOR_FRAMES or self._attached_bytes > MAX_VENDOR_BYTES:
                reason = f"at most {MAX_VENDOR_FRAMES} vendor frames with {MAX_VENDOR_BYTES} bytes before a message"
                self._end(Error(errors.TOO_LARGE, (("reason", reason),)), "MICROMSG-194")
                return
            self._attached.append((name, frame.payload))

    def _command(self, frame: Command) -> None:
        if frame.name == PING.name:
            self._client.outbox.put(ANSWER_TO_PING)
            return
        if frame.name == PONG.name:
            return
        agreement = self._connection.agreement
        request = read_subscription(frame, pub_sub=agreement is not None and agreement.pub_sub)
        if isinstance(request, Error):
            self._answer(request)
        elif frame.name == UNSUBSCRIBE:
            self._answer(self._receivers.unsubscribe(request[0]))
        elif self._draining:
            self._shut_down()
        else:
            self._answer(self._receivers.subscribe(request[0], request[1], frame.value("filter")))

    # Answers.

    def _answer(self, error: Error | None) -> None:
        """Refuse a command, if there is a reason to."""
        if error is None:
            return
        if ends_connection(error.name):
            self._end(error, "MICROMSG-174")
        elif error.name == errors.FORBIDDEN:
            self._refuse(error)  # counted by the hub
        else:
            self._client.counters.fault(FAULTS[error.name])
            self._refuse(error)

    def _refuse(self, error: Error) -> None:
        """MICROMSG-100: report what is wrong; the connection stays open."""
        if self._connection.is_established():
            self._client.outbox.put(self._connection.send(error))

    def _end(self, error: Error, fault: str) -> None:
        """MICROMSG-100: acknowledge what came before, report what is wrong, and close."""
        self._acknowledge()
        if self._connection.state is not State.CLOSED:
            self._hub.fault(self._client, fault, error.name, self._chunk)
            self._client.reason = fault
            self._say_last(error)
            self._peer.close()

    def _shut_down(self, reason: str = "", name: str = errors.SHUTTING_DOWN) -> None:
        """Report the end, and close. MICROMSG-11: before the client has begun nothing is sent."""
        self._acknowledge()
        if self._connection.state is not State.CLOSED:
            self._say_last(Error(name, (("reason", reason),) if reason else ()))
            self._peer.close()

    def _say_last(self, error: Error) -> None:
        """Send the ERROR that ends the connection, and nothing after it."""
        self._outgoing.close()
        last = self._connection.close(error)
        if last:
            self._client.outbox.put(last)

    # Acks, and what becomes possible later.

    def _acknowledge(self) -> None:
        """MICROMSG-129: acknowledge what came in this chunk, all at once, when it is safe."""
        if self._last:
            self._unsafe.append(self._last)
            self._last = 0
            self._hub.safe(self._safe, self._failed, self._client)

    def _safe(self) -> None:
        if not self._unsafe:
            return  # the journal has failed meanwhile
        sequence = self._unsafe.popleft()
        if self._connection.is_established():
            self._client.outbox.put(self._connection.acknowledge(sequence))

    def _failed(self) -> None:
        """What came with a chunk can't be made safe: it is not acknowledged, so that it is sent again."""
        self._unsafe.clear()
        self._last = 0
        self._client.counters.fault(Refused.UNAVAILABLE.label)
        self._shut_down(Refused.UNAVAILABLE.message)

    def _room(self) -> None:
        """The outbox has been written."""
        if self._connection.is_established():
            self._outgoing.resume()
            self._receivers.resume()
