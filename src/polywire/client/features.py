"""What each protocol can do, as the one face over all of them asks it."""

from collections.abc import Callable, Mapping
from typing import Final

from polywire.client.errors import Unsupported

EVERY: Final = ("umq", "micromsg", "fmqp", "mqtt", "sabc")

FEATURES: Final[Mapping[str, tuple[str, ...]]] = {
    "publish": EVERY,
    "subscribe": EVERY,
    "queue": EVERY,
    "nack": ("micromsg", "sabc"),
    "patterns with **": ("umq", "micromsg", "mqtt", "sabc"),
    "a name that begins or ends with /": ("umq", "micromsg", "mqtt", "sabc"),
    "a name with + or #": ("umq", "micromsg", "fmqp", "sabc"),
    "an empty body": ("umq", "micromsg", "mqtt", "sabc"),
    "retain": ("umq", "fmqp", "mqtt"),
    "headers": ("umq", "micromsg", "sabc"),
    "content_type": ("umq", "micromsg", "sabc"),
    "call": ("umq", "mqtt", "sabc"),
    "serve": ("umq", "mqtt", "sabc"),
    "a service's name that is no level of a topic": ("umq", "sabc"),
    "a method that is no identifier": ("umq", "sabc"),
    "watch_demand": ("fmqp",),
}
"""Each thing a program may ask for, and the protocols that have it."""


def refuse_nack(protocol: str) -> Callable[[float, str], None]:
    """What ``Message.nack`` does where the protocol can't reject messages: raise ``Unsupported``."""

    def refuse(_delay: float, _reason: str) -> None:
        raise Unsupported("nack", protocol, FEATURES["nack"])

    return refuse


def require(what: str, protocol: str) -> None:
    """Raise ``Unsupported`` where the protocol can't do this."""
    can = FEATURES[what]
    if protocol not in can:
        raise Unsupported(what, protocol, can)
