"""MQTT's fourteen control packets as values, and the numbers they are made of.

The classes bear the standard's names. Fields that the standard calls flags are ``bool``; a packet that has no packet
id has None there. Nothing is checked here: the decoder makes only valid packets, and ``encode`` refuses others.
"""

from typing import ClassVar, Final, final

from mypy_extensions import mypyc_attr

from polywire.wire.frame import Frame

# MQTT-008: the types of packets.
CONNECT: Final = 1
CONNACK: Final = 2
PUBLISH: Final = 3
PUBACK: Final = 4
PUBREC: Final = 5
PUBREL: Final = 6
PUBCOMP: Final = 7
SUBSCRIBE: Final = 8
SUBACK: Final = 9
UNSUBSCRIBE: Final = 10
UNSUBACK: Final = 11
PINGREQ: Final = 12
PINGRESP: Final = 13
DISCONNECT: Final = 14

NAMES: Final = (
    "a packet of the forbidden type 0",
    "CONNECT",
    "CONNACK",
    "PUBLISH",
    "PUBACK",
    "PUBREC",
    "PUBREL",
    "PUBCOMP",
    "SUBSCRIBE",
    "SUBACK",
    "UNSUBSCRIBE",
    "UNSUBACK",
    "PINGREQ",
    "PINGRESP",
    "DISCONNECT",
    "a packet of the forbidden type 15",
)

PROTOCOL_NAME: Final = b"MQTT"  # MQTT-030
PROTOCOL_LEVEL: Final = 4  # MQTT-031
OLD_PROTOCOL_NAME: Final = b"MQIsdp"  # of MQTT 3.1
BRIDGE: Final = 0x80  # MQTT-201: the bit of the protocol level by which a bridge shows what it is

# The connect flags, MQTT-032 to MQTT-051.
RESERVED_FLAG: Final = 0x01
CLEAN_SESSION: Final = 0x02
WILL: Final = 0x04
WILL_QOS: Final = 0x18
WILL_RETAIN: Final = 0x20
PASSWORD: Final = 0x40
USER_NAME: Final = 0x80

# MQTT-083: the return codes of CONNACK.
ACCEPTED: Final = 0
UNACCEPTABLE_PROTOCOL_VERSION: Final = 1
IDENTIFIER_REJECTED: Final = 2
SERVER_UNAVAILABLE: Final = 3
BAD_USER_NAME_OR_PASSWORD: Final = 4
NOT_AUTHORIZED: Final = 5

FAILURE: Final = 0x80  # MQTT-120: SUBACK's return code beside the three QoS

MAX_PACKET_ID: Final = 0xFFFF
MAX_OCTETS: Final = 0xFFFF  # MQTT-002: of a string, and of a field of octets
MAX_REMAINING: Final = 268_435_455  # MQTT-015


@final
@mypyc_attr(acyclic=True)
class Will(Frame):
    """The message a client leaves behind, published when its connection ends without DISCONNECT."""

    __match_args__: ClassVar[tuple[str, ...]] = ("topic", "payload", "qos", "retain")

    def __init__(self, topic: str, payload: bytes, qos: int = 0, retain: bool = False) -> None:
        self.topic: Final = topic
        self.payload: Final = payload
        self.qos: Final = qos
        self.retain: Final = retain


@final
@mypyc_attr(acyclic=True)
class Connect(Frame):
    """A client asks for a session. ``keep_alive`` is in seconds, 0 turns it off. ``bridge``: it is another broker's."""

    __match_args__: ClassVar[tuple[str, ...]] = (
        "client_id",
        "clean_session",
        "keep_alive",
        "will",
        "user_name",
        "password",
        "bridge",
    )

    def __init__(
        self,
        client_id: str,
        clean_session: bool = True,
        keep_alive: int = 0,
        will: Will | None = None,
        user_name: str | None = None,
        password: bytes | None = None,
        bridge: bool = False,
    ) -> None:
        self.client_id: Final = client_id
        self.clean_session: Final = clean_session
        self.keep_alive: Final = keep_alive
        self.will: Final = will
        self.user_name: Final = user_name
        self.password: Final = password
        self.bridge: Final = bridge


@final
@mypyc_attr(acyclic=True)
class Connack(Frame):
    """The server's answer to CONNECT. Any ``return_code`` but 0 is followed by closing."""

    __match_args__: ClassVar[tuple[str, ...]] = ("session_present", "return_code")

    def __init__(self, session_present: bool, return_code: int) -> None:
        self.session_present: Final = session_present
        self.return_code: Final = return_code


@final
@mypyc_attr(acyclic=True)
class Publish(Frame):
    """A message for a topic. ``packet_id`` is None with QoS 0 only."""

    __match_args__: ClassVar[tuple[str, ...]] = ("topic", "payload", "qos", "retain", "dup", "packet_id")

    def __init__(
        self,
        topic: str,
        payload: bytes,
        qos: int = 0,
        retain: bool = False,
        dup: bool = False,
        packet_id: int | None = None,
    ) -> None:
        self.topic: Final = topic
        self.payload: Final = payload
        self.qos: Final = qos
        self.retain: Final = retain
        self.dup: Final = dup
        self.packet_id: Final = packet_id


@final
@mypyc_attr(acyclic=True)
class Puback(Frame):
    """A message with QoS 1 has arrived."""

    __match_args__: ClassVar[tuple[str, ...]] = ("packet_id",)

    def __init__(self, packet_id: int) -> None:
        self.packet_id: Final = packet_id


@final
@mypyc_attr(acyclic=True)
class Pubrec(Frame):
    """A message with QoS 2 has arrived, and its id is held against a second delivery."""

    __match_args__: ClassVar[tuple[str, ...]] = ("packet_id",)

    def __init__(self, packet_id: int) -> None:
        self.packet_id: Final = packet_id


@final
@mypyc_attr(acyclic=True)
class Pubrel(Frame):
    """The sender of a message with QoS 2 will not send it again."""

    __match_args__: ClassVar[tuple[str, ...]] = ("packet_id",)

    def __init__(self, packet_id: int) -> None:
        self.packet_id: Final = packet_id


@final
@mypyc_attr(acyclic=True)
class Pubcomp(Frame):
    """The receiver of a message with QoS 2 no longer holds its id."""

    __match_args__: ClassVar[tuple[str, ...]] = ("packet_id",)

    def __init__(self, packet_id: int) -> None:
        self.packet_id: Final = packet_id


@final
@mypyc_attr(acyclic=True)
class Subscribe(Frame):
    """A client wants what matches ``filters``: pairs of a topic filter and the highest QoS wanted."""

    __match_args__: ClassVar[tuple[str, ...]] = ("packet_id", "filters")

    def __init__(self, packet_id: int, filters: tuple[tuple[str, int], ...]) -> None:
        self.packet_id: Final = packet_id
        self.filters: Final = filters


@final
@mypyc_attr(acyclic=True)
class Suback(Frame):
    """The answer to SUBSCRIBE: for each filter, in order, the QoS granted, or 128 for failure."""

    __match_args__: ClassVar[tuple[str, ...]] = ("packet_id", "return_codes")

    def __init__(self, packet_id: int, return_codes: tuple[int, ...]) -> None:
        self.packet_id: Final = packet_id
        self.return_codes: Final = return_codes


@final
@mypyc_attr(acyclic=True)
class Unsubscribe(Frame):
    """A client no longer wants what matches these topic filters."""

    __match_args__: ClassVar[tuple[str, ...]] = ("packet_id", "filters")

    def __init__(self, packet_id: int, filters: tuple[str, ...]) -> None:
        self.packet_id: Final = packet_id
        self.filters: Final = filters


@final
@mypyc_attr(acyclic=True)
class Unsuback(Frame):
    """The answer to UNSUBSCRIBE."""

    __match_args__: ClassVar[tuple[str, ...]] = ("packet_id",)

    def __init__(self, packet_id: int) -> None:
        self.packet_id: Final = packet_id


@final
@mypyc_attr(acyclic=True)
class Pingreq(Frame):
    """A client shows that it is there, and asks whether the server is."""


@final
@mypyc_attr(acyclic=True)
class Pingresp(Frame):
    """The server is there."""


@final
@mypyc_attr(acyclic=True)
class Disconnect(Frame):
    """The client's last packet: it leaves on purpose, its will is void."""
