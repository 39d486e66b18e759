"""One small blocking client for each protocol, and for each way to reach it, all with the same face."""

import ssl
from collections.abc import Mapping

from polywire.registry import built_in
from tests.interop.fmqp_speaker import Fmqp
from tests.interop.micromsg_speaker import Micromsg
from tests.interop.mqtt_speaker import Mqtt
from tests.interop.sabc_speaker import Sabc
from tests.interop.speaker import Speaker, StreamWire, WebSocketWire, Wire
from tests.interop.umq_speaker import Umq

PROTOCOLS = [each.name for each in built_in() if each.listeners]
VARIANTS = ["umq-envelope", "mqtt-ws", "sabc-ws"]
"""The same protocols by another way: UMQ's updates in envelopes, and the two that have a WebSocket listener as well."""

CALLING = ["umq", "sabc", "mqtt"]
"""Those whose clients call services and offer them; on MQTT by RPC over MQTT."""


def speak(
    kind: str, addresses: Mapping[str, str], user: str = "", password: str = "", *, trust: ssl.SSLContext | None = None
) -> Speaker:
    """Connect a client of one of ``PROTOCOLS`` or ``VARIANTS`` to a hub's addresses, and log it in."""
    wire = _wire(kind, addresses, trust)
    try:
        match kind:
            case "umq" | "umq-envelope":
                return Umq(wire, user, password, envelope=kind != "umq")
            case "micromsg":
                return Micromsg(wire, user, password)
            case "fmqp":
                return Fmqp(wire, user, password)
            case "mqtt" | "mqtt-ws":
                return Mqtt(wire, user, password)
            case _:
                return Sabc(wire, user, password, messages=kind == "sabc-ws")
    except BaseException:
        wire.close()
        raise


def _wire(kind: str, addresses: Mapping[str, str], trust: ssl.SSLContext | None) -> Wire:
    if kind.startswith("umq"):
        return WebSocketWire(addresses["umq"], "umq", trust)
    if kind.endswith("-ws"):
        protocol = kind.removesuffix("-ws")
        return WebSocketWire(addresses[f"{protocol}_ws"], protocol, trust)
    return StreamWire(addresses[kind], trust)
