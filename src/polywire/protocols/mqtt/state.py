"""Which packet may come when: the life of a connection as tables.

There is one table per sender. A server's decoder follows ``CLIENT_SENDS``, a client's ``SERVER_SENDS``, and each side
can hold its own packets against its own table with ``Order`` before it writes them.
"""

from enum import Enum
from typing import Final, Literal, final

from polywire.protocols.mqtt.errors import LocalProtocolError
from polywire.protocols.mqtt.packets import (
    ACCEPTED,
    CONNACK,
    CONNECT,
    DISCONNECT,
    NAMES,
    PINGREQ,
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    SUBSCRIBE,
    UNSUBACK,
    UNSUBSCRIBE,
    Connack,
)
from polywire.wire.frame import Frame

Sender = Literal["client", "server"]

REFUSAL: Final = 0x10 | CONNACK
"""The event of a CONNACK whose return code is not 0; all other events are the types of packets."""


class State(Enum):
    """How far one sender on a connection has come."""

    NEW = "new"
    CONNECTED = "connected"
    REFUSED = "refused"
    DISCONNECTED = "disconnected"


BOTH_SEND: Final = (PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP)

CLIENT_SENDS: Final[dict[tuple[State, int], State]] = {
    (State.NEW, CONNECT): State.CONNECTED,  # MQTT-027; more may follow before CONNACK comes (MQTT-074)
    (State.CONNECTED, DISCONNECT): State.DISCONNECTED,  # MQTT-136
    **{(State.CONNECTED, kind): State.CONNECTED for kind in (*BOTH_SEND, SUBSCRIBE, UNSUBSCRIBE, PINGREQ)},
}

SERVER_SENDS: Final[dict[tuple[State, int], State]] = {
    (State.NEW, CONNACK): State.CONNECTED,  # MQTT-077
    (State.NEW, REFUSAL): State.REFUSED,  # MQTT-084
    **{(State.CONNECTED, kind): State.CONNECTED for kind in (*BOTH_SEND, SUBACK, UNSUBACK, PINGRESP)},
}

TABLES: Final[dict[Sender, dict[tuple[State, int], State]]] = {"client": CLIENT_SENDS, "server": SERVER_SENDS}

OUT_OF_ORDER: Final[dict[tuple[Sender, State], tuple[str, str]]] = {
    ("client", State.NEW): ("MQTT-027", "a client's first packet must be CONNECT, not"),
    ("client", State.CONNECTED): ("MQTT-028", "a client must not send a second"),
    ("client", State.DISCONNECTED): ("MQTT-136", "a client must send nothing after DISCONNECT, not even"),
    ("server", State.NEW): ("MQTT-077", "a server's first packet must be CONNACK, not"),
    ("server", State.CONNECTED): ("MQTT-187", "a server must not send a second"),
    ("server", State.REFUSED): ("MQTT-084", "a server must send nothing after it refused the connection, not even"),
}

ONLY: Final[dict[Sender, tuple[str, frozenset[int]]]] = {
    "client": ("MQTT-011", frozenset({CONNECT, SUBSCRIBE, UNSUBSCRIBE, PINGREQ, DISCONNECT})),
    "server": ("MQTT-010", frozenset({CONNACK, SUBACK, UNSUBACK, PINGRESP})),
}
"""What only this sender sends, and the rule by which the same kind of side refuses it."""


def after(sender: Sender, state: State, event: int) -> State | None:
    """The state after ``sender`` has sent this, or None where it may not."""
    return TABLES[sender].get((state, event))


def out_of_order(sender: Sender, state: State, kind: int) -> tuple[str, str]:
    """Why ``sender`` may not send a packet of this type now, as (rule, reason)."""
    other: Sender = "server" if sender == "client" else "client"
    rule, kinds = ONLY[other]
    if kind in kinds:
        return rule, f"{NAMES[kind]} is sent by a {other} only, not by a {sender}"
    rule, reason = OUT_OF_ORDER[sender, state]
    return rule, f"{reason} {NAMES[kind]}"


@final
class Order:
    """What one side has sent on one connection, to be asked before each packet is written."""

    def __init__(self, sender: Sender) -> None:
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
