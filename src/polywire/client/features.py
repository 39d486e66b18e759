"""What each protocol can do, as the one face over all of them asks it."""

from collections.abc import Callable

from polywire.client.errors import Unsupported
from polywire.registry import Feature, by_name, protocols


def can(protocol: str, what: Feature) -> bool:
    """Whether the protocol can do this."""
    return what in by_name(protocol).can


def unsupported(what: Feature, protocol: str, detail: str = "") -> Unsupported:
    """The error for what a protocol can't do, with the protocols that can. ``detail`` follows the feature's name."""
    return Unsupported(what + detail, protocol, tuple(each.name for each in protocols() if what in each.can))


def require(what: Feature, protocol: str) -> None:
    """Raise ``Unsupported`` where the protocol can't do this."""
    if not can(protocol, what):
        raise unsupported(what, protocol)


def refuse_nack(protocol: str) -> Callable[[float, str], None]:
    """What ``Message.nack`` does where the protocol can't reject messages: raise ``Unsupported``."""

    def refuse(_delay: float, _reason: str) -> None:
        raise unsupported("nack", protocol)

    return refuse
