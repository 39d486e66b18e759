"""What one client may do: asked by the hub for every channel, made from the access rules when the client is known."""

from typing import Final

from mypy_extensions import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class Grants:
    """May do everything; what rules allow derives from it. Clients with an equal ``key`` may do the same."""

    def __init__(self, key: str = "") -> None:
        self.key: Final = key

    def may_publish(self, channel: str) -> bool:
        """Whether a message may be published to the channel, or put into the queue ``queue/<name>``."""
        return True

    def may_subscribe(self, pattern: str) -> bool:
        """Whether everything the pattern matches may be subscribed to."""
        return True

    def may_call(self, service: str) -> bool:
        """Whether the service may be called."""
        return True

    def may_serve(self, service: str) -> bool:
        """Whether the service may be offered."""
        return True

    def may_signal(self, channel: str, *, local: bool) -> bool:
        """Whether the hub may be told to stop. Without a rule: from this machine only."""
        return local


ALL: Final = Grants()
