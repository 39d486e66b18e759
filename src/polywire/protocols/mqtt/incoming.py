"""What one connected MQTT client publishes: into the journal, to the hub, and acknowledged once it is safe.

Plain publications with QoS 0 go through as they are, in runs; those with QoS 1 are recorded and acknowledged in runs;
the others, and those to queues and services, one by one.
"""

from collections import deque
from collections.abc import Callable
from typing import Final, assert_never, cast, final

from librt.strings import BytesWriter
from mypy_extensions import i64

from polywire.hub.access import PUBLISH
from polywire.hub.client import Client
from polywire.hub.hub import Hub
from polywire.hub.message import Message
from polywire.hub.recorder import Recorder
from polywire.hub.refusal import Refused
from polywire.hub.routes import Route
from polywire.hub.runs import Runs
from polywire.protocols.mqtt.frames import (
    PUBACK,
    PUBCOMP,
    PUBREC,
    Publish,
    Pubrel,
    acknowledge,
    locate,
    publications_in,
    write_acknowledgement,
)
from polywire.protocols.mqtt.outgoing import SLOW_READER
from polywire.protocols.mqtt.stored import SessionState
from polywire.protocols.mqtt.topics import RESERVED
from polywire.wire.frame import Run

TOO_LARGE: Final = "MQTT-179"


@final
class MqttRuns(Runs):
    """What MQTT's publications look like."""

    def locate(self, data: bytes, start: i64, end: i64, base: i64, places: BytesWriter) -> None:
        """Where their topics and payloads stand."""
        locate(data, start, end, base, places)


@final
class Incoming:
    """One connection's publications. ``close`` ends it, and sets ``stopped``: nothing more is taken then."""

    def __init__(
        self, hub: Hub, client: Client, state: SessionState, max_payload: int, close: Callable[[], None]
    ) -> None:
        self._hub: Final = hub
        self._client: Final = client
        self._state: Final = state
        self._max_payload: i64 = max_payload
        self._close: Final = close
        self._runs: Final = MqttRuns(client)
        self._acks = BytesWriter()
        self._unsafe: Final[deque[bytes]] = deque()  # acknowledgements of what is not safe yet
        self.now: i64 = 0  # when the chunk at hand came
        self.stopped = False
        self.draining = False

    def owes(self) -> bool:
        """Whether the client waits for an acknowledgement."""
        return len(self._unsafe) > 0

    def run(self, run: Run, *, same: bool) -> None:
        """Publications to one route, which the scanner found; ``same``: it still is the one of their topics."""
        client = self._client
        client.counters.received += run.count
        size: i64 = run.end - run.start
        recorder = self._hub.recorder
        failed = recorder is not None and recorder.failed
        if not same or size > self._max_payload or (failed and (run.qos != 0 or self._hub.strict)):
            self.record()
            for frame in publications_in(run.data, run.start, run.end):
                if not self.stopped:
                    self._take(frame)
            return
        if recorder is not None:
            self._runs.add(run, recorder, self.now)
        if run.qos != 0:
            self._confirmed(run, recorder)
            return
        refused = self._hub.forward(run, client)
        cooked = cast("Route", run.route).cooked(client.protocol)
        if not cooked and not refused:
            return
        offset: i64 = -1
        if recorder is not None and cooked:
            offset = self._runs.record(recorder, self.now) - run.count
        for frame in publications_in(run.data, run.start, run.end):
            for outbox in refused:
                outbox.count_dropped(frame.topic, 1)
            if cooked:
                message = self.message(frame.topic, frame.payload, 0, False)
                if offset >= 0:
                    message.offset = offset
                    offset += 1
                for subscription in cooked:
                    subscription.deliver(message)
        if refused:
            client.counters.drop(SLOW_READER, run.count * len(refused))

    def publish(self, frame: Publish) -> None:
        """One publication."""
        self._client.counters.received += 1
        self._take(frame)

    def _take(self, frame: Publish) -> None:
        """One publication that has been counted."""
        client = self._client
        qos: i64 = frame.qos
        if self.draining:
            # Without an acknowledgement the client knows to send it again.
            client.counters.drop(Refused.DRAINING.label)
            return
        if i64(len(frame.payload)) > self._max_payload:
            client.counters.fault(TOO_LARGE)
            self._hub.oversized(client, len(frame.payload), int(self._max_payload))
            self._close()
            return
        accepted = True
        if qos != 2:
            accepted = self._pass_on(frame)
        else:
            ledger = self._state.ledger
            if self._state.receiver.published(frame).new:
                if ledger is None:
                    accepted = self._pass_on(frame)
                else:
                    # The id without the message would be a message that is taken for known, and lost.
                    ledger.together(True)
                    ledger.hold(cast("int", frame.packet_id))
                    accepted = self._pass_on(frame)
                    ledger.together(False)
        if not accepted:
            self._refuse(frame)
        elif qos != 0:
            write_acknowledgement(self._acks, PUBACK if qos == 1 else PUBREC, cast("int", frame.packet_id))

    def release(self, frame: Pubrel) -> None:
        """The client knows that a publication with QoS 2 has come."""
        self._forget(frame)
        write_acknowledgement(self._acks, PUBCOMP, frame.packet_id)

    def message(self, topic: str, body: bytes, qos: int, retain: bool) -> Message:
        """A message from this client."""
        return Message(topic, body, "", (), (), retain, self.now, self._client.number, qos)

    def record(self) -> None:
        """Something else is about to be recorded, or nothing: record the runs before it."""
        recorder = self._hub.recorder
        if recorder is not None:
            self._runs.record(recorder, self.now)

    def acknowledge(self) -> None:
        """Acknowledge what this chunk brought, once it is safe."""
        if len(self._acks) > 0:
            self._unsafe.append(self._acks.getvalue())
            self._acks = BytesWriter()
            self._hub.safe(self._safe, self._failed)

    def _confirmed(self, run: Run, recorder: Recorder | None) -> None:
        """Pass on publications with QoS 1, where anybody wants them, and acknowledge them all."""
        self._client.counters.messages_in += run.count
        subscriptions = cast("Route", run.route).subscriptions
        if subscriptions:
            offset: i64 = -1
            if recorder is not None:
                offset = self._runs.record(recorder, self.now) - run.count
            for frame in publications_in(run.data, run.start, run.end):
                message = self.message(frame.topic, frame.payload, 1, False)
                if offset >= 0:
                    message.offset = offset
                    offset += 1
                for subscription in subscriptions:
                    subscription.deliver(message)
        acknowledge(run.data, run.start, run.end, self._acks)

    def _pass_on(self, frame: Publish) -> bool:
        """Give a publication to the hub. False where it can't be taken now."""
        if frame.topic.startswith(RESERVED):
            self._hub.refuse(self._client, PUBLISH, frame.topic, Refused.SERVICE_CHANNEL, frame.payload)
            return True
        message = self.message(frame.topic, frame.payload, frame.qos, frame.retain)
        refused = self._hub.publish(message, self._client, acknowledged=frame.qos > 0, must_retain=False)
        return refused is None or not is_retried(refused)

    def _refuse(self, frame: Publish) -> None:
        """What can't be taken now: MQTT 3.1.1 says so by not acknowledging, and closing, so that it is sent again."""
        if frame.qos == 0:
            return
        if frame.qos == 2:
            # It was not accepted after all: sent again, it is a new one.
            self._forget(Pubrel(cast("int", frame.packet_id)))
        self._close()

    def _forget(self, frame: Pubrel) -> None:
        """Know the packet id no more."""
        state = self._state
        state.receiver.released(frame)
        if state.ledger is not None:
            state.ledger.release(frame.packet_id)

    def _safe(self) -> None:
        """MQTT-193: what came with the oldest chunk that is not acknowledged is safe now."""
        self._client.outbox.put(self._unsafe.popleft())

    def _failed(self) -> None:
        """It is not yet: close without acknowledging it, so that it is sent again.

        It was accepted, and becomes safe when the journal can be written again: with QoS 2 it is known from now on.
        """
        self._unsafe.popleft()
        if not self.stopped:
            self._client.counters.fault(Refused.UNAVAILABLE.label)
            self._client.reason = Refused.UNAVAILABLE.label
            self._close()


def is_retried(refused: Refused) -> bool:
    """Whether the client is to send it again: then it is not acknowledged. What can't ever be taken is (MQTT 3.1.1)."""
    match refused:
        case (
            Refused.QUEUE_FULL | Refused.QUEUES_FULL | Refused.TOO_MANY_QUEUES | Refused.UNAVAILABLE | Refused.DRAINING
        ):
            return True
        case (
            Refused.FORBIDDEN
            | Refused.SERVICE_CHANNEL
            | Refused.UNSUPPORTED
            | Refused.TOO_DEEP
            | Refused.RETAINED_FULL
            | Refused.LIMIT
            | Refused.PATTERN_COST
            | Refused.NAMES_SIZE
            | Refused.WATCHERS
            | Refused.WILLS_SIZE
        ):
            return False
        case _:
            assert_never(refused)
