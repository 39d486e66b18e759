"""The names of RPC over MQTT for programs that serve; ``client.py`` has those for programs that call."""

from polywire.protocols.mqttrpc.client import serve
from polywire.protocols.mqttrpc.peer import Server

__all__ = ["Server", "serve"]
