"""The newest retained message of each channel, for later subscribers.

MQTT calls them retained, FMQP cached; it is one store. A message without a body clears its channel. A message kept
under a pattern (FMQP publishes to those too) stays under that pattern and is found by every name or pattern that
matches it.
"""

from typing import Final, final

from polywire.hub.message import Message
from polywire.hub.names import Names, Search, name_cost

MAX_MESSAGES: Final = 1_000_000
MAX_OCTETS: Final = 128 * 1024 * 1024
OWN: Final = "$/"
"""How the channels begin that the hub alone publishes to; what it keeps there takes no client's place."""


@final
class Retained:
    """Kept messages by channel, at most ``limit`` of them, which take at most ``most_octets`` together.

    ``size`` is about what they take: the messages, and what it costs to keep them under their names.
    """

    def __init__(self, *, limit: int = MAX_MESSAGES, most_octets: int = MAX_OCTETS) -> None:
        self.limit = limit
        self.most_octets = most_octets
        self.size = 0
        self._own = 0  # how many are the hub's
        self._messages: Final[dict[str, Message]] = {}
        self._names: Final = Names()

    def __len__(self) -> int:
        return len(self._messages)

    def has_room(self, message: Message) -> bool:
        """Whether the message can be kept; one that clears its channel, or is the hub's own, always can."""
        if (not message.body and not message.attachments) or message.channel.startswith(OWN):
            return True
        old = self._messages.get(message.channel)
        size = self.size + _cost(message) - (0 if old is None else _cost(old))
        if size > self.most_octets and size > self.size:
            return False
        return old is not None or len(self._messages) - self._own < self.limit

    def keep(self, message: Message) -> bool:
        """Keep the message, or with an empty body clear its channel. False where there is no room for it."""
        channel = message.channel
        old = self._messages.get(channel)
        if not message.body and not message.attachments:
            if old is not None:
                del self._messages[channel]
                self._own -= channel.startswith(OWN)
                self._names.discard(channel)
                self.size -= _cost(old)
            return True
        if not self.has_room(message):
            return False
        if old is None:
            self._own += channel.startswith(OWN)
        else:
            self.size -= _cost(old)
        self._names.add(channel)
        self._messages[channel] = message.again()  # what is encoded for today's subscribers is not kept
        self.size += _cost(message)
        return True

    def get(self, channel: str) -> Message | None:
        """The message kept under exactly this channel."""
        return self._messages.get(channel)

    def search(self, pattern: str, *, dollar: bool = False) -> Search:
        """The channels of the messages a new subscription to the pattern is to get, in steps, oldest first.

        A message that is replaced meanwhile is not found: the subscription gets the new one anyway.
        """
        return self._names.search(pattern, dollar=dollar)

    def find(self, pattern: str, *, dollar: bool = False) -> list[Message]:
        """All messages a new subscription to the pattern is to get, oldest first."""
        found: list[Message] = []
        search = self.search(pattern, dollar=dollar)
        while True:
            names = search.some()
            if names is None:
                return found
            found.extend([self._messages[name] for name in names])


def _cost(message: Message) -> int:
    """About how many bytes of clients a kept message takes."""
    return 0 if message.channel.startswith(OWN) else message.size() + name_cost(message.channel)
