"""The configuration of the hub: ``polywire.toml``, ``--set``, and every key's default, in one checked value.

>>> from polywire.server.config import load
>>> loaded = load(sets=["listen.fmqp=tcp://127.0.0.1:0", "limits.message_size=1 MiB"])
>>> loaded.config.limits.message_size
1048576
"""

from polywire.server.config.loader import Loaded, Setting, load
from polywire.server.config.schema import (
    AccessRule,
    Auth,
    Config,
    Fabric,
    Journal,
    Jwt,
    Limits,
    Listen,
    ListenerUsers,
    Log,
    SlowReader,
    Throttle,
    Tls,
)
from polywire.server.config.text import ConfigError, Origin, Problem

__all__ = [
    "AccessRule",
    "Auth",
    "Config",
    "ConfigError",
    "Fabric",
    "Journal",
    "Jwt",
    "Limits",
    "Listen",
    "ListenerUsers",
    "Loaded",
    "Log",
    "Origin",
    "Problem",
    "Setting",
    "SlowReader",
    "Throttle",
    "Tls",
    "load",
]
