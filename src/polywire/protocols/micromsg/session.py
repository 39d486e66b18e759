"""MicroMsg2 on the hub's side of one connection: handshake, then frames in, hub operations, frames out.

The client logs in with its final handshake message; what it sent behind that message waits until the login is decided.
From then on messages are published, acknowledged once they are safe, and commands are answered, all in order.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final, assert_never, cast, final

from polywire.hub.access import Identity
from polywire.hub.client import Client
from polywire.hub.hub import Hub
from polywire.hub.message import Headers, Message
from polywire.hub.peer import Limits, Login, Peer, Refusal
from polywire.hub.refusal import Refused
from polywire.protocols.micromsg import errors, filters, places
from polywire.protocols.micromsg.bridge import (
    FORMS,
    IS_JSON,
    JSON_TYPE,
    MAX_VENDOR_BYTES,
    MAX_VENDOR_FRAMES,
    headers,
    write_vendor_frames,
)
from polywire.protocols.micromsg.connection import Agreement, Event, ReceiveWindow, State, after
from polywire.protocols.micromsg.dotnet import TypeReader
from polywire.protocols.micromsg.errors import RemoteProtocolError, ends_connection
from polywire.protocols.micromsg.filters import UNSUBSCRIBE, read_subscription
from polywire.protocols.micromsg.frames import (
    Command,
    Decoder,
    Error,
    Extension,
    Handshake,
    ack,
    encode,
    read_ack,
    read_nack,
)
from polywire.protocols.micromsg.frames import Message as Send
from polywire.protocols.micromsg.greeting import Greeting
from polywire.protocols.micromsg.outgoing import Outgoing
from polywire.protocols.micromsg.subscribing import Receivers
from polywire.protocols.micromsg.text import DOTNET, MAX_PROPERTIES, X_NACK, json_problem
from polywire.wire.frame import Frame

PROTOCOL: Final = "micromsg"
PONG: Final = encode(filters.PONG)
NOT_AGREED: Final = -1
"""In place of an extension's number: no EXTENSION frame has this one."""
FAULTS: Final = {
    errors.UNKNOWN_COMMAND: "MICROMSG-131",
    errors.BAD_FILTER: "MICROMSG-173",
    errors.NO_SUCH_DESTINATION: "MICROMSG-134",
}
"""The rule that a command broke, by the error it got; for the counters."""


@final
class MicromsgSession:
    """One MicroMsg2 connection. Its client joins the hub when it has ended the handshake and is logged in."""

    def __init__(self, hub: Hub, client: Client, peer: Peer, limits: Limits) -> None:
        self._hub: Final = hub
        self._client: Final = client
        self._peer: Final = peer
        self._limits: Final = limits
        self._decoder: Final = Decoder(
            max_message=limits.message_size,
            max_control=limits.header_size,
            max_properties=min(limits.header_size, MAX_PROPERTIES),
            max_handshake=limits.message_size_before_auth,
        )
        self._state = State.CONNECTED
        self._greeting: Final = Greeting(limits.in_flight)
        self._agreement: Agreement | None = None
        self._logging_in = False
        self._held: list[Frame] = []
        self._failure: RemoteProtocolError | None = None
        self._draining = False
        # What the handshake gives; until then nothing is sent or received that would need it.
        self._ack_number = NOT_AGREED
        self._nack_number = NOT_AGREED
        self._type_number = NOT_AGREED
        self._json = False
        self._types: Final = TypeReader()
        self._attached: Final[list[tuple[str, bytes]]] = []  # frames of vendor extensions, for the next message
        self._attached_bytes = 0
        self._window = ReceiveWindow()
        self._outgoing = Outgoing(client, 0, 0, {}, json=False)
        self._receivers = Receivers(hub, client, self._outgoing, limits.subscriptions)
        self._last = 0  # the last message that waits for its ack, 0 for none
        self._unsafe: Final[deque[int]] = deque()
        self._destination = ""
        self._channel = ""
        self._chunk = b""  # the newest one, to show where it can't be read

    def received(self, data: bytes) -> None:
        """Handle what the peer has sent."""
        self._client.counters.octets_in += len(data)
        if self._state is State.CLOSED:
            return
        failure: RemoteProtocolError | None = None
        try:
            frames = self._decoder.feed(data)
        except RemoteProtocolError as error:
            frames = cast("list[Frame]", error.frames)
            failure = error
        self._chunk = data
        self._handle(frames, failure)
        self._chunk = b""

    def lost(self) -> None:
        """The connection has ended, for whatever reason."""
        self._state = State.CLOSED
        self._outgoing.close()
        self._client.outbox.on_room = None
        self._receivers.end()
        self._hub.leave(self._client)

    def drain(self) -> None:
        """The hub is going down: take no more messages, hand out none of queues; who is not yet in is sent away."""
        self._draining = True
        self._outgoing.draining = True
        if self._state is not State.ESTABLISHED:
            self._shut_down()

    def pending(self) -> int:
        """How many bytes of an unfinished message are held."""
        return self._decoder.pending()

    def no_room(self, reason: str) -> None:
        """MICROMSG-198: ERROR ``too-large``."""
        self._acknowledge()
        if self._state is not State.CLOSED:
            self._client.outbox.put(encode(Error(errors.TOO_LARGE, (("reason", reason),))))

    def busy(self) -> bool:
        """Whether an ack is due, from the hub or from the peer, or messages wait for the window."""
        if self._state is not State.ESTABLISHED:
            return False
        return len(self._unsafe) > 0 or self._last != 0 or self._outgoing.is_busy()

    def goodbye(self, *, expired: bool = False) -> None:
        """End the connection from the hub's side: ERROR ``shutting-down``, then close."""
        self._shut_down("the login has expired" if expired else "")

    def timed_out(self) -> None:
        """MICROMSG-176: the peer took too long, for its handshake or to be heard of: ERROR, then close."""
        if self._state is State.ESTABLISHED:
            self._shut_down("nothing was heard of you for too long")
        else:
            self._shut_down("the handshake took too long", errors.BAD_HANDSHAKE)

    def _handle(self, frames: Sequence[Frame], failure: RemoteProtocolError | None) -> None:
        """Handle frames in order, then the violation behind them. While a login is pending, all of it waits."""
        for at, frame in enumerate(frames):
            if self._logging_in:
                self._held = list(frames[at:])
                break
            if self._state is State.CLOSED:
                return
            self._frame(frame)
        if self._logging_in:
            self._failure = failure
            return
        self._acknowledge()
        if failure is not None:
            if failure.oversize and self._state is not State.CLOSED:
                self._hub.oversized(self._client, failure.oversize, self._limits.message_size)
            self._end(cast("Error", failure.reply), failure.rule)

    def _frame(self, frame: Frame) -> None:
        if isinstance(frame, Send):
            self._publish(frame)
        elif isinstance(frame, Extension):
            self._extension(frame)
        elif isinstance(frame, Command):
            self._command(frame)
        elif isinstance(frame, Handshake):
            if self._state is State.CONNECTED:
                self._reply(frame)
            else:
                self._agree(frame)
        elif isinstance(frame, Error):
            self._client.counters.fault(f"peer: {frame.name}" if frame.name in errors.ENDS_CONNECTION else "peer")
            if self._state is not State.ESTABLISHED or ends_connection(frame.name):
                self._close()

    # The handshake.

    def _reply(self, offer: Handshake) -> None:
        """Answer the client's offer."""
        self._state = after(self._state, Event.OFFER)
        reply = self._greeting.reply(offer)
        if self._hub.draining:
            self._shut_down()
            return
        if isinstance(reply, Error):
            self._end(reply, "MICROMSG-108" if reply.name == errors.BAD_VERSION else "MICROMSG-14")
            return
        self._state = after(self._state, Event.REPLY)
        self._client.outbox.put(encode(reply))

    def _agree(self, final_message: Handshake) -> None:
        """Take the client's final message, and log it in with what ``x-auth`` says there."""
        agreement = self._greeting.agree(final_message)
        if isinstance(agreement, Error):
            self._end(agreement, "MICROMSG-165" if agreement.name == errors.UNSUPPORTED_EXTENSION else "MICROMSG-101")
            return
        self._agreement = agreement
        self._client.name = agreement.peer
        presented = agreement.credentials or {}
        self._logging_in = True
        login = Login(presented.get("user", ""), presented.get("password"), presented.get("token"))
        self._peer.login(login, self._identified)

    def _identified(self, who: Identity | Refusal) -> None:
        """The login is decided: begin, or refuse."""
        self._logging_in = False
        agreement = self._agreement
        if self._state is State.CLOSED or agreement is None:
            return
        if isinstance(who, Refusal):
            arguments = [("name", "x-auth"), ("reason", who.reason)]
            if who.retry_after > 0:
                arguments.append(("retry-after", f"{who.retry_after:.3f}"))
            self._end(Error(errors.FORBIDDEN, tuple(arguments)), "login")
            return
        self._state = after(self._state, Event.FINAL)
        client = self._client
        self._ack_number = agreement.number(agreement.acks or "") or NOT_AGREED
        if self._ack_number != NOT_AGREED:  # without acks what was written is taken
            self._nack_number = agreement.number(X_NACK) or NOT_AGREED
        types = agreement.number(DOTNET) or 0
        self._type_number = types or NOT_AGREED
        self._json = agreement.json
        self._window = ReceiveWindow(agreement.window)
        self._outgoing = Outgoing(client, agreement.window, types, agreement.vendors, json=self._json)
        self._receivers = Receivers(self._hub, client, self._outgoing, self._limits.subscriptions)
        client.outbox.on_room = self._room
        self._peer.established()
        self._hub.join(client)
        held, self._held = self._held, []
        failure, self._failure = self._failure, None
        if held or failure is not None:
            self._handle(held, failure)

    # Frames from the peer.

    def _publish(self, frame: Send) -> None:
        """MICROMSG-03: a SEND goes to its topic or queue. It is acknowledged even if refused, behind the ERROR."""
        client = self._client
        client.counters.received += 1
        if self._draining:
            client.counters.drop(Refused.DRAINING.label)
            self._shut_down()
            return
        wrong = self._window.received(frame.sequence)
        if wrong is not None:
            self._end(wrong, "MICROMSG-125" if wrong.name == errors.WINDOW_EXCEEDED else "MICROMSG-124")
            return
        if self._json:
            reason = json_problem(frame.payload)
            if reason is not None:
                self._end(Error(errors.BAD_FRAME, (("reason", reason),)), "MICROMSG-150")
                return
        if self._ack_number != NOT_AGREED:
            self._last = frame.sequence
        before = ""
        if self._attached:
            before = write_vendor_frames(self._attached)
            self._attached.clear()
            self._attached_bytes = 0
        if frame.destination != self._destination or not self._channel:
            channel = places.of_message(frame.destination)
            if isinstance(channel, Error):
                client.counters.drop("no-such-destination")
                self._refuse(Error(channel.name, (*channel.arguments, ("sequence", str(frame.sequence)))))
                return
            self._destination = frame.destination
            self._channel = channel
        content_type = ""
        attached: Headers = ()
        named_type = self._types.current
        if frame.properties or named_type or before:
            content_type, attached = headers(frame.properties, named_type, before)
        if self._json and not content_type:
            content_type = JSON_TYPE
        message = Message(
            self._channel, frame.payload, content_type, attached, time=self._hub.clock(), origin=client.number
        )
        if self._json:
            message.encoded[client.protocol * FORMS + IS_JSON] = True
        refused = self._hub.publish(message, client, acknowledged=self._ack_number != NOT_AGREED)
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
        if frame.number == self._ack_number:
            sequence = read_ack(frame.payload)
            if isinstance(sequence, Error):
                self._end(sequence, "MICROMSG-168")
                return
            wrong = self._outgoing.acked(sequence)
            if wrong is not None:
                self._end(wrong, "MICROMSG-128")
                return
            self._receivers.resume()
        elif frame.number == self._nack_number:
            rejected = read_nack(frame.payload)
            if isinstance(rejected, Error):
                self._end(rejected, "MICROMSG-196")
                return
            wrong = self._outgoing.nacked(*rejected)
            if wrong is not None:
                self._end(wrong, "MICROMSG-196")
                return
            self._receivers.resume()
        elif frame.number == self._type_number:
            wrong = self._types.told(frame.payload)
            if wrong is not None:
                self._end(wrong, "MICROMSG-172")
        else:
            purpose = Error(errors.BAD_FRAME) if self._agreement is None else self._agreement.purpose(frame)
            if isinstance(purpose, Error):
                self._end(purpose, "MICROMSG-167")
                return
            self._attached_bytes += len(frame.payload)
            if len(self._attached) == MAX_VENDOR_FRAMES or self._attached_bytes > MAX_VENDOR_BYTES:
                reason = f"at most {MAX_VENDOR_FRAMES} vendor frames with {MAX_VENDOR_BYTES} bytes before a message"
                self._end(Error(errors.TOO_LARGE, (("reason", reason),)), "MICROMSG-194")
                return
            self._attached.append((purpose, frame.payload))

    def _command(self, frame: Command) -> None:
        pub_sub = self._agreement is not None and self._agreement.pub_sub
        if frame.name == "ping":
            self._client.outbox.put(PONG)
            return
        if frame.name == "pong":
            return
        request = read_subscription(frame, pub_sub=pub_sub)
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
        """MICROMSG-100: say what is wrong; the connection lives on."""
        self._client.outbox.put(encode(error))

    def _end(self, error: Error, fault: str) -> None:
        """MICROMSG-100: acknowledge what came before, say what is wrong, and hang up."""
        self._acknowledge()
        if self._state is not State.CLOSED:
            self._hub.fault(self._client, fault, error.name, self._chunk)
            self._client.reason = fault
            self._client.outbox.put(encode(error))
            self._close()

    def _shut_down(self, reason: str = "", name: str = errors.SHUTTING_DOWN) -> None:
        """Say that this is the end, and hang up. MICROMSG-11: before the client has begun nothing is said."""
        self._acknowledge()
        if self._state is not State.CLOSED:
            if self._greeting.offered is not None or self._decoder.pending():
                self._client.outbox.put(encode(Error(name, (("reason", reason),) if reason else ())))
            self._close()

    def _close(self) -> None:
        self._state = State.CLOSED
        self._outgoing.close()
        self._peer.close()

    # Acks, and what becomes possible later.

    def _acknowledge(self) -> None:
        """MICROMSG-129: acknowledge what came in this chunk, all at once, when it is safe."""
        if self._last:
            self._unsafe.append(self._last)
            self._last = 0
            self._hub.safe(self._safe, self._failed)

    def _safe(self) -> None:
        if not self._unsafe:
            return  # the journal has failed meanwhile
        sequence = self._unsafe.popleft()
        if self._state is State.ESTABLISHED:
            self._window.acknowledge(sequence)
            self._client.outbox.put(encode(ack(self._ack_number, sequence)))

    def _failed(self) -> None:
        """What came with a chunk can't be made safe: it is not acknowledged, so that it is sent again."""
        self._unsafe.clear()
        self._last = 0
        self._client.counters.fault(Refused.UNAVAILABLE.label)
        self._shut_down(Refused.UNAVAILABLE.message)

    def _room(self) -> None:
        """The outbox has been written."""
        if self._state is State.ESTABLISHED:
            self._outgoing.resume()
            self._receivers.resume()
