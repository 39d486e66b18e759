"""What the journal is told of an MQTT session that is kept, so that it outlives the hub.

Each message due to the session has a row of its own, whose offset is the delivery's name from then on: what became of
it is told under that name. Queues' messages stay the queues'; of them only that a packet id of QoS 2 is in use is told,
under a negative name made of the id.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final, final

import msgspec.json

from polywire.hub.access import Identity
from polywire.hub.message import Message
from polywire.hub.recorder import UNRECORDED, Recorder


@final
class Ledger:
    """One kept session's rows. ``waiting`` and ``sent`` name the deliveries in ``SessionState`` and its sender."""

    def __init__(
        self,
        recorder: Recorder,
        protocol: int,
        name: str,
        waiting: Iterable[int] = (),
        sent: Iterable[tuple[int, int]] = (),
    ) -> None:
        self._recorder: Final = recorder
        self._protocol: Final = protocol
        self._name: Final = name
        self.waiting: Final[deque[int]] = deque(waiting)
        self.sent: Final[dict[int, int]] = dict(sent)

    def begin(self, who: Identity, *, anew: bool, bridge: bool) -> None:
        """The session's client has connected. Who it is decides later what the session may collect."""
        headers = _json(_about(who, bridge=bridge))
        self._recorder.session(self._protocol, self._name, who.name, kept=True, anew=anew, headers=headers)

    def away(self, who: Identity, *, doubtful: int, bridge: bool) -> None:
        """The session's client has gone. What waits under a name below ``doubtful`` may have been sent before.

        The row's time is when the client went. A session without this row had a client when its hub was killed.
        """
        headers = _json({"away": doubtful, **_about(who, bridge=bridge)})
        self._recorder.session(self._protocol, self._name, who.name, kept=True, anew=False, headers=headers)

    def end(self) -> None:
        """Nothing is kept any more."""
        end_session(self._recorder, self._protocol, self._name)

    def wished(self, topic_filter: str, qos: int) -> None:
        """The client has subscribed."""
        self._recorder.wished(self._protocol, self._name, topic_filter, qos)

    def unwished(self, topic_filter: str) -> None:
        """The client has unsubscribed."""
        self._recorder.unwished(self._protocol, self._name, topic_filter)

    def push(self, topic: str, message: Message, qos: int, *, retain: bool) -> None:
        """One more message waits."""
        offset = self._recorder.stored(self._protocol, self._name, topic, message, qos, 0, retain=retain)
        self.waiting.append(offset)

    def drop(self, count: int) -> None:
        """The newest of those that wait are not kept."""
        for _ in range(min(count, len(self.waiting))):
            self._finish(self.waiting.pop())

    def pop(self, packet: int) -> None:
        """The message that has waited longest was sent under a packet id."""
        offset = self.waiting.popleft()
        self.sent[packet] = offset
        if offset != UNRECORDED:
            self._recorder.sent(self._protocol, self._name, offset, packet)

    def send(self, topic: str, message: Message, qos: int, packet: int, *, retain: bool) -> None:
        """A message was sent that did not have to wait."""
        offset = self._recorder.stored(self._protocol, self._name, topic, message, qos, packet, retain=retain)
        self.sent[packet] = offset

    def lend(self, packet: int) -> None:
        """A queue's message is sent under a packet id: whatever becomes of it, the client is to let go of the id."""
        name = UNRECORDED - packet
        self.sent[packet] = name
        self._recorder.received(self._protocol, self._name, name, packet)

    def received(self, packet: int) -> None:
        """The client has what was sent under a packet id, and the id is still in use."""
        name = self.sent.get(packet, UNRECORDED)
        if name >= 0:
            self._recorder.received(self._protocol, self._name, name, packet)
        elif name == UNRECORDED:
            self.lend(packet)

    def finished(self, packet: int) -> None:
        """A packet id is free again."""
        offset = self.sent.pop(packet, None)
        if offset is not None:
            self._finish(offset)

    def together(self, together: bool) -> None:
        """What is recorded from now on is safe as a whole or not at all, until it is false again."""
        self._recorder.together(together)

    def hold(self, packet: int) -> None:
        """The client has published with QoS 2."""
        self._recorder.held(self._protocol, self._name, packet)

    def release(self, packet: int) -> None:
        """And has let go of the packet id."""
        self._recorder.released(self._protocol, self._name, packet)

    def _finish(self, offset: int) -> None:
        if offset != UNRECORDED:
            self._recorder.finished(self._protocol, self._name, offset)


def _about(who: Identity, *, bridge: bool) -> dict[str, object]:
    about: dict[str, object] = {"how": who.how}
    if who.groups:
        about["groups"] = sorted(who.groups)
    if bridge:
        about["bridge"] = True
    return about


def _json(value: dict[str, object]) -> str:
    return msgspec.json.encode(value).decode()


def end_session(recorder: Recorder, protocol: int, name: str) -> None:
    """Nothing is kept of a session."""
    recorder.session(protocol, name, "", kept=False, anew=True)
