"""Polywire: a message hub that speaks five protocols on one routing core, and the clients to talk to it.

>>> import polywire
>>> sorted(polywire.compiled())[0]
'polywire.hub.access'

``async with polywire.connect("fmqp://127.0.0.1:7103") as bus:`` is where a program begins; ``polywire.sync`` is the
same for scripts. What they need is loaded when it is first asked for.
"""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

from polywire.compilation import compiled, load_sources_only, pure_wanted
from polywire.errors import (
    LocalProtocolError,
    PolywireError,
    ProtocolError,
    RemoteProtocolError,
)

if TYPE_CHECKING:
    from polywire.client.bus import Bus, connect
    from polywire.client.errors import (
        AddressError,
        BufferFull,
        CallFailed,
        ClientError,
        Closed,
        ConnectFailed,
        ConnectionLost,
        Overrun,
        PatternError,
        Refused,
        Timeout,
        TooLarge,
        Unsupported,
    )
    from polywire.client.message import Demand, JsonBody, Message, Request, json
    from polywire.client.receipt import Promise, Receipt
    from polywire.client.reconnect import Backoff
    from polywire.client.tls import client_context
    from polywire.pipeline.spark import spark_session

if pure_wanted():
    load_sources_only(Path(__file__).parent)

__version__ = "0.1.0"

__all__ = [
    "AddressError",
    "Backoff",
    "BufferFull",
    "Bus",
    "CallFailed",
    "ClientError",
    "Closed",
    "ConnectFailed",
    "ConnectionLost",
    "Demand",
    "JsonBody",
    "LocalProtocolError",
    "Message",
    "Overrun",
    "PatternError",
    "PolywireError",
    "Promise",
    "ProtocolError",
    "Receipt",
    "Refused",
    "RemoteProtocolError",
    "Request",
    "Timeout",
    "TooLarge",
    "Unsupported",
    "__version__",
    "client_context",
    "compiled",
    "connect",
    "json",
    "spark_session",
]

_LATER = {
    "AddressError": "client.errors",
    "Backoff": "client.reconnect",
    "BufferFull": "client.errors",
    "Bus": "client.bus",
    "CallFailed": "client.errors",
    "ClientError": "client.errors",
    "Closed": "client.errors",
    "ConnectFailed": "client.errors",
    "ConnectionLost": "client.errors",
    "Demand": "client.message",
    "JsonBody": "client.message",
    "Message": "client.message",
    "Overrun": "client.errors",
    "PatternError": "client.errors",
    "Promise": "client.receipt",
    "Receipt": "client.receipt",
    "Refused": "client.errors",
    "Request": "client.message",
    "Timeout": "client.errors",
    "TooLarge": "client.errors",
    "Unsupported": "client.errors",
    "client_context": "client.tls",
    "connect": "client.bus",
    "json": "client.message",
    "spark_session": "pipeline.spark",
}
"""Names that are loaded when they are first used, and the module they are in."""


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module 'polywire' has no attribute {name!r}")
    value: object = getattr(importlib.import_module(f"polywire.{_LATER[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
