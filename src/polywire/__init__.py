"""Polywire: a message hub that speaks five protocols on one routing core, and the clients to talk to it.

>>> import polywire
>>> sorted(polywire.compiled())[0]
'polywire.hub.access'

``async with polywire.connect("fmqp://127.0.0.1:7103") as bus:`` is where a program begins; ``polywire.sync`` is the
same for scripts. What they need is loaded when it is first asked for.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from polywire.errors import LocalProtocolError, PolywireError, ProtocolError, RemoteProtocolError
from polywire.process import compiled, exports, load_sources_only, pure_wanted

if TYPE_CHECKING:
    from polywire.backoff import Backoff
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
    from polywire.client.outgoing import Promise, Receipt
    from polywire.client.tls import client_context
    from polywire.pipeline.spark import spark_session
else:
    __getattr__, __dir__ = exports(
        __name__,
        {
            "backoff": "Backoff",
            "client.bus": "Bus connect",
            "client.errors": (
                "AddressError BufferFull CallFailed ClientError Closed ConnectFailed ConnectionLost Overrun "
                "PatternError Refused Timeout TooLarge Unsupported"
            ),
            "client.message": "Demand JsonBody Message Request json",
            "client.outgoing": "Promise Receipt",
            "client.tls": "client_context",
            "pipeline.spark": "spark_session",
        },
    )

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
