"""Which packet one side may send next, by the tables in ``frames``."""

from typing import Final, final

from polywire.protocols.mqtt.errors import LocalProtocolError
from polywire.protocols.mqtt.frames import ACCEPTED, NAMES, REFUSAL, Connack, Side, State, after, out_of_order
from polywire.wire.frame import Frame


@final
class Order:
    """What one side has sent on one connection, to be asked before each packet is written."""

    def __init__(self, sender: Side) -> None:
        self._sender: Final = sender
        self.state = State.NEW

    def sends(self, frame: Frame) -> None:
        """Go on to the state after ``frame``, or raise ``LocalProtocolError`` and stay."""
        name = type(frame).__name__.upper()
        if name not in NAMES:
            raise LocalProtocolError(f"{type(frame).__name__} is not an MQTT packet", rule="MQTT-008")
        kind = NAMES.index(name)
        refused = isinstance(frame, Connack) and frame.return_code != ACCEPTED
        following = after(self._sender, self.state, REFUSAL if refused else kind)
        if following is None:
            rule, reason = out_of_order(self._sender, self.state, kind)
            raise LocalProtocolError(reason, rule=rule)
        self.state = following
