"""The newest message of each channel that asked to be kept, for those who subscribe later.

MQTT calls them retained, FMQP cached; it is one store. A message without a body clears its channel. A message kept
under a pattern (FMQP publishes to those too) stays under that pattern and is found by whatever meets it.
"""

from typing import Final, final

from polywire.hub.channels import is_literal
from polywire.hub.message import Message
from polywire.hub.trie import Trie

MAX_MESSAGES: Final = 1_000_000
MAX_OCTETS: Final = 256 * 1024 * 1024
OWN: Final = "$/"
"""How the channels begin that the hub alone publishes to; what it keeps there takes no client's place."""


@final
class Retained:
    """Kept messages by channel, at most ``limit`` of them with at most ``most_octets`` together."""

    def __init__(self, *, limit: int = MAX_MESSAGES, most_octets: int = MAX_OCTETS) -> None:
        self.limit = limit
        self.most_octets = most_octets
        self.size = 0
        self._own = 0  # how many are the hub's
        self._messages: Final[dict[str, Message]] = {}
        self._names: Final[Trie[str]] = Trie()

    def __len__(self) -> int:
        return len(self._messages)

    def has_room(self, message: Message) -> bool:
        """Whether the message can be kept; one that clears its channel, or is the hub's own, always can."""
        if (not message.body and not message.attachments) or message.channel.startswith(OWN):
            return True
        old = self._messages.get(message.channel)
        size = self.size + message.size() - (0 if old is None else old.size())
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
                self._names.discard(channel, channel)
                self.size -= old.size()
            return True
        if not self.has_room(message):
            return False
        if old is None:
            self._names.add(channel, channel)
            self._own += channel.startswith(OWN)
        else:
            self.size -= old.size()
        self._messages[channel] = message
        self.size += message.size()
        return True

    def get(self, channel: str) -> Message | None:
        """The message kept under exactly this channel."""
        return self._messages.get(channel)

    def find(self, pattern: str, *, dollar: bool = False) -> list[Message]:
        """The messages a new subscription to the pattern is to get, oldest first."""
        if is_literal(pattern) and len(self._names) == 0:
            return []
        found = [self._messages[name] for name in self._names.find(pattern)]
        if not dollar and pattern.startswith("\0"):
            found = [message for message in found if not message.channel.startswith("$")]
        found.sort(key=_time)
        return found


def _time(message: Message) -> int:
    return message.time
